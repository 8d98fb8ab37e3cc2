"""Signs of life of the ranks of a group, by which its leader notices a stopped rank.

A thread of each rank counts up a word. It needs neither the program nor Python's lock, so that a rank that computes or
waits gives signs of life for any length of time. A stopped process gives none, and neither does one on a stopped host.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types

from hybridps.compiled import compiled
from hybridps.compiled.ordered import load, store
from hybridps.errors import GroupError, HybridPSError
from hybridps.events import say
from hybridps.memory import ALIGNMENT
from hybridps.mpi_groups.group import Transfer, allgather
from hybridps.mpi_groups.session import Session, end_group
from hybridps.tensor_collectives.levels import Levels

_LINE = ALIGNMENT // 8
"""The number of int64 words in a cache line. Each rank of a node has one line."""

_TAG = 1

_MOST_MISSED = 2.5
"""The number of signs of life that may be missing before a rank counts as silent. Threads are late on a busy host."""

_poll = types.ExternalFunction("poll", types.int32(types.voidptr, types.uint64, types.int32))


@compiled
def _count_up(words, place, ending, milliseconds):  # type: ignore[no-untyped-def]
    """Count up a word every `milliseconds`, until a descriptor becomes readable.

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
    """For how many seconds each rank has been silent, from the words that each look shows.

    `watched`: the ranks that count. Time in which the watching process itself was stopped hardly counts.
    """

    def __init__(self, watched: np.ndarray, beat_seconds: float, now: float) -> None:
        self._watched = watched
        self._beat_seconds = beat_seconds
        self._looked, self._words = now, np.zeros(watched.size, np.int64)
        self._seconds = np.zeros(watched.size)

    def look(self, words: np.ndarray, now: float) -> None:
        """Take in the current words of the ranks."""
        passed, self._looked = min(now - self._looked, 2 * self._beat_seconds), now
        self._seconds = np.where(self._watched & (words == self._words), self._seconds + passed, 0.0)
        self._words = words

    def longest(self) -> tuple[int, float]:
        """Return the rank that has been silent for longest, and for how long.

        The time is 0 seconds while hardly a sign of life is missing.
        """
        seconds = self._seconds  # the watching thread may replace it meanwhile
        rank = int(seconds.argmax())
        return rank, float(seconds[rank]) if seconds[rank] > _MOST_MISSED * self._beat_seconds else 0.0


class _NodeWords(NamedTuple):
    """What the leader receives about the ranks of another node: their words, and whether these are the last."""

    source: int
    ranks: tuple[int, ...]
    words: np.ndarray


class SignsOfLife:
    """The signs of life of the ranks of `levels.group`. All ranks make one, in the same order.

    The leader watches all ranks. If ranks share memory, the next rank of its node watches the leader. On each other
    node, one rank tells the leader about all of them. When a rank has been silent for `lost_seconds`, its watcher
    reports it. The watcher also ends the group if `failure`, which the caller may replace, returns an error and the
    group is an MPI world of its own.
    """

    def __init__(self, levels: Levels, session: Session) -> None:
        settings, rank, size, topology = session.settings, levels.group.rank, levels.group.size, levels.topology
        self.failure: Callable[[], HybridPSError | None] = lambda: None
        self._session = session
        self._group = levels.group.split(0)
        self._beat_seconds = min(settings.heartbeat_seconds, settings.lost_seconds / 8)
        self._hosts = [f"process {pid} on {host}" for pid, host in allgather(self._group, _process(), tuple[int, str])]
        self._has_reported = False
        here, nodes = topology.members[topology.node], topology.members
        shared = levels.shared(len(here) * _LINE, "int64", 1) if size > 1 else None
        if shared is None:  # each rank then tells of itself
            here, nodes = (rank,), tuple((each,) for each in range(size))
        self._words = np.zeros(_LINE, np.int64) if shared is None else shared[0]
        self._ranks = here
        """The ranks of this node, to which `_words` belong."""
        self._others = [
            _NodeWords(ranks[0], ranks, np.zeros(len(ranks) + 1, np.int64)) for ranks in nodes if 0 not in ranks
        ]
        self._mine = next((told for told in self._others if told.source == rank), None)
        """What this rank tells the leader, if it does."""
        self.watches_leader = here[0] == 0 and rank in here[1:2]
        """Whether this rank watches the leader."""
        watched = np.full(size, rank == 0) | self.watches_leader & (np.arange(size) == 0)
        self._silences = _Silences(watched, self._beat_seconds, time.monotonic())
        self._transfers: dict[int, Transfer] = {}
        """The transfers under way, by the rank that sends. The watching thread owns them until `close` has joined
        it."""
        self._ended = threading.Event()
        self._beats = _Beats(self._words, here.index(rank) * _LINE, self._beat_seconds) if size > 1 else None
        self._thread = threading.Thread(target=self._watch, name="hybridps-signs-of-life", daemon=True)
        if size > 1 and (watched.any() or self._mine is not None):
            self._thread.start()

    def silence(self) -> float:
        """Return for how many seconds the most silent rank that this rank watches has been silent."""
        return self._silences.longest()[1]

    def close(self) -> None:
        """End the threads. This waits until all ranks have called it."""
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

    # The watching thread calls the methods below; `close` calls them after it has joined that thread.

    def _watch(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            if self._mine is not None:
                self._tell()
            else:
                self._look()

    def _tell(self, last: bool = False) -> bool:
        """Send the words of this node to the leader, unless the previous message is still under way.

        Returns whether it has sent them.
        """
        told = self._mine
        assert told is not None
        if not self._transfers.get(told.source, lambda: True)():
            return False
        told.words[:-1], told.words[-1] = self._words[::_LINE][: len(told.ranks)], last
        self._transfers[told.source] = self._group.send(told.words, 0, _TAG)
        return True

    def _hear(self, told: _NodeWords) -> bool:
        """Receive what has arrived from another node. Returns whether its last message is there."""
        while not told.words[-1]:
            if told.source not in self._transfers:
                self._transfers[told.source] = self._group.receive(told.words, told.source, _TAG)
            if not self._transfers[told.source]():
                return False
            del self._transfers[told.source]
        return True

    def _look(self) -> None:
        """Find out which ranks have given a sign of life since the last look."""
        words = np.zeros(self._group.size, np.int64)
        words[list(self._ranks)] = self._words[::_LINE][: len(self._ranks)]
        for told in self._others if self._group.rank == 0 else ():
            self._hear(told)
            words[list(told.ranks)] = told.words[:-1]
        self._silences.look(words, time.monotonic())
        rank, seconds = self._silences.longest()
        if seconds < self._session.settings.lost_seconds:
            self._has_reported = False
        else:
            self._report(rank, seconds)

    def _report(self, rank: int, seconds: float) -> None:
        """Report a rank that has been silent for too long, and end the group if no other group expects it any more."""
        session, failure = self._session, self.failure()
        who = f"rank {rank} of group {session.place.group} ({self._hosts[rank]})"
        if failure is not None and session.is_one_group:
            end_group(GroupError(f"{who} gave no sign of life for {seconds:.0f} s, and {failure}"))
        if not self._has_reported:
            self._has_reported = True
            say(f"{who} gives no sign of life for {seconds:.0f} s")


def _process() -> tuple[int, str]:
    return os.getpid(), socket.gethostname()
