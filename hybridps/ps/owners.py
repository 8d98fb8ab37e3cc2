"""The threads of a server that own chunks. A chunk has one owner for ever, so nothing is locked."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from hybridps.errors import ServerError
from hybridps.ps.terms import Done, Up, Work

TOGETHER = 8
"""Pieces of work done in one go: their ends are told together."""

log = logging.getLogger("hybridps.ps")


class Owners:
    """Owner 0 is the thread that calls; the others are threads of their own, pinned to `cores` in turn if given.

    `ready` is a descriptor that can be read when `collect` has something.
    """

    def __init__(self, count: int, cores: Sequence[int] = ()) -> None:
        self.count = count
        self.backlog = 0
        """Pieces of work handed out that are not known to be done."""
        self._own: deque[Work] = deque()
        self._results: queue.SimpleQueue[tuple[int, list[Done | Up]]] = queue.SimpleQueue()
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queues: list[queue.SimpleQueue[list[Work] | None]] = [queue.SimpleQueue() for _ in range(1, count)]
        if cores:
            os.sched_setaffinity(0, {cores[0]})
        self._threads = [
            threading.Thread(target=self._run, args=(work, cores[(number + 1) % len(cores)] if cores else None))
            for number, work in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        """Whether the calling thread has work of its own."""
        return bool(self._own)

    def hand(self, works: Sequence[Work]) -> None:
        """Hand work to its owners; of one owner in this order."""
        self.backlog += len(works)
        of_owner: dict[int, list[Work]] = {}
        for work in works:
            of_owner.setdefault(work.owner, []).append(work)
        for owner, own in of_owner.items():
            if owner == 0:
                self._own += own
                continue
            for begin in range(0, len(own), TOGETHER):
                self._queues[owner - 1].put(own[begin : begin + TOGETHER])

    def work(self) -> list[Done | Up]:
        """Do a part of the calling thread's own work; what is to be told then."""
        count = min(TOGETHER, len(self._own))
        self.backlog -= count
        return _do([self._own.popleft() for _ in range(count)])

    def collect(self) -> list[Done | Up]:
        """What is to be told of work that the other owners have done."""
        try:
            os.eventfd_read(self.ready)
        except BlockingIOError:
            return []
        done: list[Done | Up] = []
        while not self._results.empty():
            count, ended = self._results.get()
            self.backlog -= count
            done += ended
        return done

    def finish(self) -> list[Done | Up]:
        """Do all work that was handed out, and wait for the others; what is to be told then."""
        ends = [threading.Event() for _ in self._queues]
        for work, end in zip(self._queues, ends, strict=True):
            work.put([Work(0, end.set)])
        done = _do(self._own)
        self.backlog += len(self._queues) - len(self._own)
        self._own.clear()
        for end in ends:
            end.wait()
        return done + self.collect()

    def close(self) -> None:
        """End the threads when they have done what they were handed."""
        for work in self._queues:
            work.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self.ready)

    def _run(self, queue: queue.SimpleQueue[list[Work] | None], core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        while (works := queue.get()) is not None:
            self._results.put((len(works), _do(works)))
            os.eventfd_write(self.ready, 1)


def _do(works: Sequence[Work]) -> list[Done | Up]:
    """Whatever goes wrong, the groups hear of it, and the thread goes on."""
    done: list[Done | Up] = []
    for work in works:
        try:
            work.run()
            done += work.done
        except Exception as error:
            log.exception("a chunk could not be worked on")
            failed = ServerError(f"the server failed: {type(error).__name__}: {error}")
            done += [replace(end, error=failed) for end in work.done]
    return done
