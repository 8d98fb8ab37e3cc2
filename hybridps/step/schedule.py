"""The communication thread of a worker: it does what the program asks for, in program order.

Items are done in that order, several at a time where they have arrived on all ranks. Only the gradients that a step
expects are reduced in another order, bucket by bucket (a fused step), until the step is complete or the ranks agree
that it cannot be completed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import Any

from hybridps.errors import GroupError
from hybridps.step.agreement import Agreement, digest
from hybridps.step.inbox import Inbox
from hybridps.step.job_context import JobContext
from hybridps.step.program_order import ProgramOrder
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


Release = Callable[[], None]
"""Called on the communication thread when an item is done and its memory may be used."""

Entry = tuple["Item", "Release | None"]
"""An item that was posted (with None), or an item that has arrived, with its release."""


def do_nothing() -> None:
    """Do nothing: the release of an item that no thread waits for."""


class Item:
    """One request of the program.

    The program's thread makes it and posts it. Any thread calls it once, when its memory may be used: it has then
    *arrived*. Everything else belongs to the communication thread.
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
    """None until `arrived`."""

    def __init__(self, inbox: Inbox[Entry]) -> None:
        self._inbox = inbox

    def __call__(self, release: Release = do_nothing) -> None:
        """Report that the item has arrived. `release` is called when it is done."""
        self._inbox.put((self, release), self.name)

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
        self.done = True
        if self.release is not None:
            self.release()


class Work(Item):
    """A call on the communication thread. `local`: whether only this rank makes it."""

    def __init__(self, title: str, inbox: Inbox[Entry], work: Callable[[], Any], local: bool = False) -> None:
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
        self.inbox: Inbox[Entry] = Inbox()
        self.agreement = Agreement(levels)
        self.roll = Roll(self, levels, context)
        """How many groups and workers the job has."""
        self.pace = Pace(levels, context, self.waited_until)
        """How long the ranks of the group take for a step."""
        self.last_change = time.monotonic()
        """When this thread last found that an item was posted or had arrived, on the monotonic clock."""
        self._context = context
        self._program_waits = program_waits
        self._on_error = on_error
        self._error: BaseException | None = None
        self._program_thread = 0
        self.waits_here = False
        """Whether the program's thread waits for work on the communication thread, not for a sum."""
        self._waited_here_until = -math.inf
        self.items = ProgramOrder()
        self._mergeable = 0
        """The number of items that more may be merged with, and that have not arrived."""
        self._thread = threading.Thread(target=self._run, name="hybridps-communication", daemon=True)
        self._thread.start()

    # The methods below run on the program's thread, unless they say otherwise.

    def post(self, item: Item) -> None:
        """Add an item, in program order. Raises the exception that has ended the communication thread."""
        if self._error is not None:
            raise self._error
        self._program_thread = threading.get_ident()
        self.inbox.put((item, None), item.name)

    def post_local(self, title: str, work: Callable[[], None]) -> None:
        """Add work that only this rank does. May be called from any thread, even during a garbage collection."""
        item = Work(title, self.inbox, work, local=True)
        self.inbox.put((item, None))
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
        self.inbox.put((Stop(self.inbox), None))
        self._thread.join()

    # The methods below run on the communication thread.

    def take(self, timeout_seconds: float | None, keys: Collection[str] = ()) -> bool:
        """Wait until an item is posted or arrives, and note all that did. Returns whether one came in time.

        `keys`: gradients of other keys need not end the wait.
        """
        if self.inbox.wait(timeout_seconds, keys):
            self.take_all()
            return True
        return False

    def take_all(self) -> None:
        """Note everything that was posted or has arrived by now."""
        entries = self.inbox.take_all()
        for item, release in entries:
            if release is None:
                self.items.append(item)
                self._mergeable += item.can_merge
            else:
                item.release, item.arrived = release, True
                self._mergeable -= item.can_merge
            item.seen()
        if entries:
            self.last_change = time.monotonic()

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
        while (item := self.items.head()) is None:
            self.take(None)
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
        self.take_all()
        batch = list(takewhile(lambda item: item.arrived and not item.alone, self.items.open()))
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
                self.take(None)
        while item.can_merge and (self._mergeable or self.items.latest.can_merge):
            if not self.take(POLL_SECONDS) and (
                self.program_waits() or time.monotonic() - self.last_change > STALL_SECONDS
            ):
                return
