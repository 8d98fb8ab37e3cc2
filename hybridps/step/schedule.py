"""The communication thread of a worker: it does what the program asks for, in program order.

Items are done in that order, several at a time where they have arrived on all ranks. Only the gradients that a step
expects are reduced in another order, bucket by bucket (a fused step), until the step is complete or the ranks agree
that it cannot be completed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

from hybridps.errors import GroupError
from hybridps.step.agreement import Agreement, digest
from hybridps.step.inbox import Inbox, Release
from hybridps.step.job_context import JobContext
from hybridps.step.roll import Roll
from hybridps.step.timing import Pace, shorten_time_slice
from hybridps.tensor_collectives import Levels

POLL_SECONDS = 0.003
"""After this time without an entry, the schedule checks whether the program waits."""

STALL_SECONDS = 1.0
"""After this time without an entry, a step no longer waits for its missing gradients."""

IN_ORDER = digest(["program order"])

ProgramWaits = Callable[[int], bool]
"""Returns whether the thread with this identity is waiting inside the framework."""


def never(thread: int) -> bool:
    """Return False: the program waits in methods of the schedule only."""
    return False


def do_nothing() -> None:
    """Do nothing: the release of an item that no thread waits for."""


class Item:
    """One request of the program.

    The program's thread makes it and posts it. When its memory may be used, the item has *arrived*: any thread calls it
    once, or an engine's operation reports its ticket. Everything else belongs to the communication thread.
    """

    alone = False
    """Whether the item is done by itself, without asking whether all ranks have reached it."""

    is_local = False
    """Whether only this rank has this item."""

    is_never_awaited = False
    """Whether the program never waits for the item itself."""

    can_merge = False
    """Whether more items of this kind may follow soon, so that it is worth waiting for them."""

    name = ""
    """The key of the item, or another name, if a step may wait for it."""

    arrived = False
    """Whether it has arrived, as far as the communication thread knows."""

    arrived_at = 0.0
    """When it arrived, on the monotonic clock."""

    has_begun = False
    """Whether it is under way as a whole, or never waits for other groups."""

    title = ""
    """What this is, in messages. Equal on all ranks."""

    shape = ""
    """The shape and dtype in words, if ranks may differ in them."""

    done = False

    place = 0
    """Its number among the items of all ranks, in program order."""

    release: Release | None = None
    """None until `arrived`, and if it has a ticket."""

    ticket = 0
    """The ticket by which an operation of an engine reports that the item has arrived, and ends with it; 0: none."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __call__(self, release: Release = do_nothing) -> None:
        """Report that the item has arrived. `release` is called when it is done."""
        self.arrived_at = time.monotonic()
        self._inbox.put(self, release)

    def take_ticket(self) -> int:
        """Return a ticket by which an operation of an engine reports that the item has arrived: see `Arrivals`."""
        self.ticket = self._inbox.arrivals.ticket(self)
        return self.ticket

    def seen(self) -> None:
        """Called on the communication thread when the item was posted, and again when it has arrived.

        Items that arrive when they are posted (`Begin`, `End`) are only posted.
        """

    def run(self, items: Sequence[Item]) -> int:
        """Do this item, and those behind it in `items` that can be done together with it. Returns how many were done.

        `items` begins with this item. All have arrived, on all ranks.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Mark the item as done, and release its memory."""
        finish([self])

    def note_done(self) -> None:
        """Called when the item is done, before its memory is released."""
        self.done = True


def finish(items: Iterable[Item]) -> None:
    """Mark items of a schedule as done, and release their memory: in one call where operations of an engine wait."""
    tickets: list[int] = []
    for item in items:
        item.note_done()
        if item.ticket:
            tickets.append(item.ticket)
        elif item.release is not None:
            item.release()
    if tickets:
        item._inbox.arrivals.end(tickets)


class Work(Item):
    """A call on the communication thread. `local`: whether only this rank makes it."""

    def __init__(self, title: str, inbox: Inbox, work: Callable[[], Any], local: bool = False) -> None:
        super().__init__(inbox)
        self.title = title
        self.alone = self.is_local = local
        self.result: Any = None
        self.ended = threading.Event()
        """Set when the result is available."""
        self._work = work

    def run(self, items: Sequence[Item]) -> int:
        self.result = self._work()
        self.finish()
        self.ended.set()
        return 1


class Stop(Item):
    """The end of the schedule."""

    title = "the end of the schedule"
    alone = True
    arrived = True


class Schedule:
    """Runs items on a thread of its own.

    `program_waits`: see `ProgramWaits`. `on_error` is called on the communication thread with the exception that ended
    it; later calls on the program's thread raise that exception.
    """

    def __init__(
        self,
        levels: Levels,
        context: JobContext,
        program_waits: ProgramWaits = never,
        on_error: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.inbox: Inbox = Inbox()
        self.agreement = Agreement(levels)
        self.roll = Roll(self, levels, context)
        """How many groups and workers the job has."""
        self.pace = Pace(levels, context, self.waited_until)
        """How long the ranks of the group take for a step."""
        self._context = context
        self._program_waits = program_waits
        self._on_error = on_error
        self._error: BaseException | None = None
        self._program_thread = 0
        self.waits_here = False
        """Whether the program's thread waits for work on the communication thread, not for a sum."""
        self._waited_here_until = -math.inf
        self._thread = threading.Thread(target=self._run, name="hybridps-communication", daemon=True)
        self._thread.start()

    # The methods below run on the program's thread, unless they say otherwise.

    def post(self, item: Item) -> None:
        """Add an item, in program order. Raises the exception that has ended the communication thread."""
        if self._error is not None:
            raise self._error
        self._program_thread = threading.get_ident()
        self.inbox.put(item)

    def post_local(self, title: str, work: Callable[[], None]) -> None:
        """Add work that only this rank does. May be called from any thread, even during a garbage collection."""
        item = Work(title, self.inbox, work, local=True)
        self.inbox.put(item)
        item()

    def call(self, title: str, work: Callable[[], Any], local: bool = False) -> Any:
        """Do `work` on the communication thread, in program order, and return its result. `local` as in `Work`."""
        item = Work(title, self.inbox, work, local)
        self.post(item)
        item()
        self.wait_for(item.ended)
        return item.result

    def agree_on(self, title: str) -> None:
        """Have the ranks of the group check that all of them reach this call. Does not wait."""
        self.begin_call(title, do_nothing)

    def begin_call(self, title: str, work: Callable[[], Any]) -> None:
        """Begin to do `work` on the communication thread, in program order. Does not wait."""
        item = Work(title, self.inbox, work)
        self.post(item)
        item()

    def wait_for(self, ended: threading.Event) -> None:
        """Wait for an event that the communication thread sets. Raises the exception that has ended that thread."""
        self.waits_here = True
        try:
            while not ended.wait(0.1):
                if self._error is not None:
                    raise self._error
                if not self._thread.is_alive():
                    raise GroupError("the schedule of this worker was closed")
        finally:
            self._waited_here_until = time.monotonic()
            self.waits_here = False

    def close(self) -> None:
        """Wait until everything that was posted is done, and end the thread."""
        self.waits_here = True
        self.inbox.put(Stop(self.inbox))
        self._thread.join()
        self.inbox.close()

    # The methods below run on the communication thread.

    def program_waits(self) -> bool:
        """Return whether the program's thread is waiting now."""
        return self.waits_here or self._program_waits(self._program_thread)

    def waited_until(self) -> float:
        """Return when the program was last known to wait, on the monotonic clock: now if it waits."""
        return time.monotonic() if self.program_waits() else self._waited_here_until

    def _run(self) -> None:
        shorten_time_slice()
        try:
            while not isinstance(item := self._next(), Stop):
                self._do(item)
        except BaseException as error:
            # This comes first, so that the error is reported once, before the program's thread meets it.
            self._on_error(error)
            self._error = error

    def _next(self) -> Item:
        while (item := self.inbox.items.head()) is None:
            self.inbox.take(None)
        return item

    def _do(self, item: Item) -> None:
        if item.alone:
            self._await(item)
            item.run([item])
        else:
            self._batch(item)

    def _batch(self, head: Item) -> None:
        """Do as many items as have arrived on all ranks, in program order, in as few operations as possible."""
        self._await(head)
        self.inbox.take_all()
        batch = list(takewhile(lambda item: item.arrived and not item.alone, self.inbox.items.open()))
        awaited, began = self.agreement.awaited, time.monotonic()
        with self._context.watch(lambda: f"{head.title}, which {awaited(self._context.worker)} has not come to"):
            count, _ = self.agreement.vote(IN_ORDER, len(batch), head.title)
        self._context.trace.span("vote", began)
        self.agreement.check_same([(item.title, item.shape) for item in batch[:count]])
        done = 0
        while done < count:
            with self._context.watch(batch[done].title):
                done += batch[done].run(batch[done:count])

    def _await(self, item: Item) -> None:
        """Wait until the item has arrived, and until no more items are expected that could be merged with it."""
        with self._context.watch(f"{item.title}, which this worker has not computed"):
            while not item.arrived:
                self.inbox.take(None)
        while item.can_merge and self.inbox.expects_more:
            if not self.inbox.take(POLL_SECONDS) and (
                self.program_waits() or time.monotonic() - self.inbox.last_change > STALL_SECONDS
            ):
                return
