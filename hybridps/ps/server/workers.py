"""The threads of a server that own chunks. A chunk has one owner as long as it exists, so nothing is locked."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps.model import Task

log = logging.getLogger("hybridps.ps")

TOGETHER = 8
"""Tasks whose ends are told together, if so many wait."""

LITTLE_BYTES = 2 << 20
"""A task that moves no more takes about as long as handing it to a thread and back (0.1 ms): the loop does it at once.
Between two looks at the sockets it does no more than so many bytes altogether."""


class Workers:
    """`count` threads, pinned to `cores` in turn if given. Used by the loop alone.

    `ready` is a descriptor that can be read when `collect` has something.
    """

    def __init__(self, count: int, cores: Sequence[int] = ()) -> None:
        self.count = count
        self.backlog = 0
        """Tasks handed out that are not known to be done."""
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._at_once: list[tuple[Task, Any]] = []
        """Tasks that the loop has done."""
        self._at_once_bytes = 0
        self._handed = [0] * count
        """Tasks of each owner that are handed out and not known to be done."""
        self._done: queue.SimpleQueue[list[tuple[Task, Any]]] = queue.SimpleQueue()
        self._queues: list[queue.SimpleQueue[Task | None]] = [queue.SimpleQueue() for _ in range(count)]
        self._threads = [
            threading.Thread(
                target=self._run, args=(tasks, cores[number % len(cores)] if cores else None), name="hybridps-worker"
            )
            for number, tasks in enumerate(self._queues)
        ]

    def start(self) -> None:
        """Start the threads. Only once."""
        for thread in self._threads:
            thread.start()

    def hand(self, tasks: Iterable[Task]) -> None:
        """Hand tasks to their owners; those of one owner are done in this order.

        A little one whose owner has nothing to do is done at once.
        """
        for task in tasks:
            self.backlog += 1
            self._handed[task.owner] += 1
            left = LITTLE_BYTES - self._at_once_bytes
            if task.nbytes is not None and task.nbytes <= left and self._handed[task.owner] == 1:
                self._at_once_bytes += task.nbytes
                self._at_once.append((task, _do(task)))
            else:
                self._queues[task.owner].put(task)

    @property
    def has_done(self) -> bool:
        """Whether `collect` has something that the loop itself has done."""
        return bool(self._at_once)

    def collect(self) -> list[tuple[Task, Any]]:
        """Tasks that are done, each with what its `run` returned, or a ServerError."""
        done, self._at_once = self._at_once, []
        while not self._done.empty():
            done += self._done.get()
        self.backlog -= len(done)
        for task, _ in done:
            self._handed[task.owner] -= 1
        return done

    def begin_lap(self, is_ready: bool) -> None:
        """The loop has looked at its sockets: it may do little tasks again. `is_ready`: `ready` could be read."""
        self._at_once_bytes = 0
        if is_ready:
            os.eventfd_read(self.ready)

    def drain(self) -> list[tuple[Task, Any]]:
        """Wait until all tasks that were handed out are done; as `collect`."""
        ends = [threading.Event() for _ in self._queues]
        for owner, end in enumerate(ends):
            self.backlog += 1
            self._handed[owner] += 1
            self._queues[owner].put(Task(owner, end.set, lambda result: ()))
        for end in ends:
            end.wait()
        done = self.collect()
        while self.backlog:  # a worker may not have put down what it has just done
            done += self.collect()
        return done

    def close(self) -> None:
        """End the threads when they have done what they were handed."""
        for tasks in self._queues:
            tasks.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        os.close(self.ready)

    def _run(self, tasks: queue.SimpleQueue[Task | None], core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        while (task := tasks.get()) is not None:
            done = [(task, _do(task))]
            while len(done) < TOGETHER and not task.sends and not tasks.empty():
                task = tasks.get()
                if task is None:
                    tasks.put(None)
                    break
                done.append((task, _do(task)))
            self._done.put(done)
            os.eventfd_write(self.ready, 1)


def _do(task: Task) -> Any:
    """Whatever goes wrong, the groups hear of it, and the thread goes on."""
    try:
        return task.run()
    except HybridPSError as error:
        return error
    except Exception as error:
        log.exception("a task has failed")
        return ServerError(f"the server failed: {type(error).__name__}: {error}")
