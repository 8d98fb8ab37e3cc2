"""Signs of life of the ranks of a group, by which its leader knows of a rank that is stopped.

A thread of each rank counts up a word. It needs neither the program nor Python's lock, so that a rank that computes or
waits gives signs of life, however long. A process that is stopped gives none, nor one whose host is.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types

from hybridps.compiled import compiled
from hybridps.compiled.ordered import load, store
from hybridps.errors import GroupError, HybridPSError
from hybridps.memory import ALIGNMENT
from hybridps.mpi_groups.group import Transfer, allgather
from hybridps.mpi_groups.session import Session, end_group
from hybridps.tensor_collectives.levels import Levels

_LINE = ALIGNMENT // 8
"""int64 words in a cache line, of which each rank of a node has one."""

_TAG = 1

_MOST_MISSED = 2.5
"""Signs of life that may be missing before a rank is silent: threads are late on a busy host."""

_poll = types.ExternalFunction("poll", types.int32(types.voidptr, types.uint64, types.int32))


@compiled
def _count_up(words, place, ending, milliseconds):  # type: ignore[no-untyped-def]
    """Count up a word every so many `milliseconds`, until there is something to read at a descriptor.

    `ending`: one `struct pollfd`, as an int64.
    """
    while True:
        store(words, place, load(words, place) + 1)
        if _poll(ending.ctypes.data, types.uint64(1), milliseconds) > 0:
            return


class _Beats:
    """A thread that counts up the word at `place` of `words`, until `stop`."""

    def __init__(self, words: np.ndarray, place: int, seconds: float) -> None:
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)
        waits = np.array([self._ending | select.POLLIN << 32], np.int64)
        given = words, place, waits, max(1, int(seconds * 1000))
        self._thread = threading.Thread(target=_count_up, args=given, name="hybridps-sign-of-life", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        os.eventfd_write(self._ending, 1)
        self._thread.join()
        os.close(self._ending)


class _Silences:
    """For how many seconds each rank has been silent, as its words show at each look.

    `watched`: which ranks count. Time in which the process that looks was stopped itself hardly counts.
    """

    def __init__(self, watched: np.ndarray, beat_seconds: float, now: float) -> None:
        self._watched = watched
        self._beat_seconds = beat_seconds
        self._looked, self._words = now, np.zeros(watched.size, np.int64)
        self._seconds = np.zeros(watched.size)

    def look(self, words: np.ndarray, now: float) -> None:
        """These are the words of the ranks by now."""
        passed, self._looked = min(now - self._looked, 2 * self._beat_seconds), now
        self._seconds = np.where(self._watched & (words == self._words), self._seconds + passed, 0.0)
        self._words = words

    def longest(self) -> tuple[int, float]:
        """The rank that has been silent for longest, and how long; 0 seconds if hardly a sign of life is missing."""
        seconds = self._seconds  # another thread may look meanwhile
        rank = int(seconds.argmax())
        return rank, float(seconds[rank]) if seconds[rank] > _MOST_MISSED * self._beat_seconds else 0.0


class _Told(NamedTuple):
    """What the leader hears of the ranks of another node: their words, and whether these are the last."""

    source: int
    ranks: tuple[int, ...]
    words: np.ndarray


class SignsOfLife:
    """The signs of life of the ranks of `levels.group`. All of them make one, in the same order.

    The leader watches all ranks, and the next rank of its node, if they share memory, watches the leader. On each other
    node one rank tells the leader of all. When a rank was silent for `lost_seconds`, who watches it says so, and ends
    the group if `failure`, which the caller may replace, returns an error, and the group is an MPI world of its own.
    """

    def __init__(self, levels: Levels, session: Session) -> None:
        settings, rank, size, topology = session.settings, levels.group.rank, levels.group.size, levels.topology
        self.failure: Callable[[], HybridPSError | None] = lambda: None
        self._session = session
        self._group = levels.group.split(0)
        self._beat_seconds = min(settings.heartbeat_seconds, settings.lost_seconds / 8)
        self._hosts = [f"process {pid} on {host}" for pid, host in allgather(self._group, _process(), tuple[int, str])]
        self._has_told = False
        here, nodes = topology.members[topology.node], topology.members
        shared = levels.shared(len(here) * _LINE, "int64", 1) if size > 1 else None
        if shared is None:  # then each rank tells of itself
            here, nodes = (rank,), tuple((each,) for each in range(size))
        self._words = np.zeros(_LINE, np.int64) if shared is None else shared[0]
        self._ranks = here
        """The ranks of this node, whose words these are."""
        self._others = [_Told(ranks[0], ranks, np.zeros(len(ranks) + 1, np.int64)) for ranks in nodes if 0 not in ranks]
        self._mine = next((told for told in self._others if told.source == rank), None)
        """What this rank tells the leader, if it does."""
        self.watches_leader = here[0] == 0 and rank in here[1:2]
        """Whether this rank watches the leader."""
        watched = np.full(size, rank == 0) | self.watches_leader & (np.arange(size) == 0)
        self._silences = _Silences(watched, self._beat_seconds, time.monotonic())
        self._transfers: dict[int, Transfer] = {}
        """What is under way, by the rank that sends."""
        self._ended = threading.Event()
        self._beats = _Beats(self._words, here.index(rank) * _LINE, self._beat_seconds) if size > 1 else None
        self._thread = threading.Thread(target=self._watch, name="hybridps-signs-of-life", daemon=True)
        if size > 1 and (watched.any() or self._mine is not None):
            self._thread.start()

    def silence(self) -> float:
        """For how many seconds the rank that has been silent for longest, of those that this one watches, is so."""
        return self._silences.longest()[1]

    def close(self) -> None:
        """End the threads, when all ranks have come here."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._beats is not None:
            self._beats.stop()
        if self._mine is not None:
            while not self._tell(last=True):
                time.sleep(0.001)
            while not self._transfers[self._mine.source]():
                time.sleep(0.001)
        while self._group.rank == 0 and not all(self._hear(told) for told in self._others):
            time.sleep(0.001)
        self._group.free()

    # On the thread that watches.

    def _watch(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            if self._mine is not None:
                self._tell()
            else:
                self._look()

    def _tell(self, last: bool = False) -> bool:
        """Send the leader the words of this node, unless what was sent before is still under way."""
        told = self._mine
        assert told is not None
        if not self._transfers.get(told.source, lambda: True)():
            return False
        told.words[:-1], told.words[-1] = self._words[::_LINE][: len(told.ranks)], last
        self._transfers[told.source] = self._group.send(told.words, 0, _TAG)
        return True

    def _hear(self, told: _Told) -> bool:
        """Receive what has come from another node; whether it was the last."""
        while not told.words[-1]:
            if told.source not in self._transfers:
                self._transfers[told.source] = self._group.receive(told.words, told.source, _TAG)
            if not self._transfers[told.source]():
                return False
            del self._transfers[told.source]
        return True

    def _look(self) -> None:
        """See which ranks have given a sign of life since the last look."""
        words = np.zeros(self._group.size, np.int64)
        words[list(self._ranks)] = self._words[::_LINE][: len(self._ranks)]
        for told in self._others if self._group.rank == 0 else ():
            self._hear(told)
            words[list(told.ranks)] = told.words[:-1]
        self._silences.look(words, time.monotonic())
        rank, seconds = self._silences.longest()
        if seconds < self._session.settings.lost_seconds:
            self._has_told = False
        else:
            self._report(rank, seconds)

    def _report(self, rank: int, seconds: float) -> None:
        """Say that a rank is silent for too long, and end the group if nobody else expects it any more."""
        session, failure = self._session, self.failure()
        who = f"rank {rank} of group {session.place.group} ({self._hosts[rank]})"
        if failure is not None and (session.plan.groups == 1 or session.settings.group_index is not None):
            end_group(GroupError(f"{who} gave no sign of life for {seconds:.0f} s, and {failure}"))
        if not self._has_told:
            self._has_told = True
            print(f"hybridps: {who} gives no sign of life for {seconds:.0f} s", file=sys.stderr, flush=True)


def _process() -> tuple[int, str]:
    return os.getpid(), socket.gethostname()
