"""Topologies: which groups a group sends to in a step. Pure functions of step, rank, size and seed.

A step is one sending of a group, so that groups which send seldom still come to all of their peers. Each topology
connects all groups: over the steps of its period, each group reaches each other one, if need be by way of others.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hybridps.errors import ConfigError

Peers = tuple[int, ...]
_CYCLES = 2
"""Of a random regular graph, so that each group has four neighbours."""


def ring(step: int, rank: int, size: int, seed: int) -> Peers:
    """The next group of a ring, then the one before.

    >>> [ring(step, 0, 4, 0) for step in range(3)]
    [(1,), (3,), (1,)]
    """
    return ((rank + (-1 if step % 2 else 1)) % size,) if size > 1 else ()


def exponential(step: int, rank: int, size: int, seed: int) -> Peers:
    """The groups 1, 2, 4, ... places further, in turn (Assran et al., 2019).

    >>> [exponential(step, 1, 6, 0) for step in range(4)]
    [(2,), (3,), (5,), (2,)]
    """
    return ((rank + (1 << step % _powers(size))) % size,) if size > 1 else ()


def regular(step: int, rank: int, size: int, seed: int) -> Peers:
    """The neighbours in a random regular graph, in turn: the union of two random rings, drawn by the seed."""
    if size < 2:
        return ()
    turn = step % (2 * _CYCLES)
    return (_cycle(size, seed, turn // 2)[turn % 2][rank],)


def complete(step: int, rank: int, size: int, seed: int) -> Peers:
    """All others, in every step."""
    return tuple(peer for peer in range(size) if peer != rank)


def random_peer(step: int, rank: int, size: int, seed: int) -> Peers:
    """Any other group with the same chance, drawn anew in each step."""
    if size < 2:
        return ()
    other = _mixed(_mixed(_mixed(seed) ^ step) ^ rank) % (size - 1)
    return (other + (other >= rank),)


class Topology(NamedTuple):
    """A topology by its name, with the seed of its random choices."""

    name: str
    seed: int = 0

    def peers(self, step: int, rank: int, size: int) -> Peers:
        """The groups that `rank` of `size` groups sends to in a step."""
        return _FUNCTIONS[self.name](step, rank, size, self.seed)

    def period(self, size: int) -> int:
        """Steps after which the peers repeat; of `random`, in which all groups are connected almost certainly."""
        periods = {"ring": 2, "exponential": _powers(size), "regular": 2 * _CYCLES, "complete": 1}
        return periods.get(self.name, 16 + 4 * size)

    def neighbours(self, rank: int, size: int) -> Peers:
        """All groups that `rank` sends to at times."""
        if self.name == "random":
            return complete(0, rank, size, 0)
        found = {peer for step in range(self.period(size)) for peer in self.peers(step, rank, size)}
        return tuple(sorted(found))

    def mixing(self, step: int, size: int) -> np.ndarray:
        """The matrix (size, size) of a step in which all send: column j is what group j gives, its own part included.

        Each keeps as much as each of its peers gets. Columns sum to 1; rows too, but not with `random`.
        """
        matrix = np.zeros((size, size))
        for rank in range(size):
            receivers = (rank, *self.peers(step, rank, size))
            matrix[list(receivers), rank] = 1 / len(receivers)
        return matrix


def parse(text: str) -> Topology:
    """A topology from `NAME` or `NAME:SEED`. Raises ConfigError, with the nearest name.

    >>> parse("random:7")
    Topology(name='random', seed=7)
    """
    name, colon, seed = text.strip().partition(":")
    if name not in _FUNCTIONS:
        near = difflib.get_close_matches(name, _FUNCTIONS, n=1, cutoff=0.0)
        raise ConfigError(f"topology {text!r} is unknown; did you mean {near[0]!r}? Known: {', '.join(_FUNCTIONS)}")
    if colon and not (seed.isascii() and seed.isdecimal() and len(seed) <= 18):
        raise ConfigError(f"topology {text!r} has the seed {seed!r}: write {name}:SEED with a number >= 0")
    return Topology(name, int(seed or 0))


_FUNCTIONS: dict[str, Callable[[int, int, int, int], Peers]] = {
    "random": random_peer,
    "ring": ring,
    "exponential": exponential,
    "regular": regular,
    "complete": complete,
}


def _powers(size: int) -> int:
    """The number of powers of two below a size; at least 1."""
    return max(1, (size - 1).bit_length())


@lru_cache(maxsize=64)
def _cycle(size: int, seed: int, number: int) -> tuple[Peers, Peers]:
    """The next and the previous group of each one in a random ring."""
    order = np.random.default_rng((seed, number)).permutation(size)
    following, before = np.empty(size, int), np.empty(size, int)
    following[order] = np.roll(order, -1)
    before[order] = np.roll(order, 1)
    return tuple(following.tolist()), tuple(before.tolist())


def _mixed(number: int) -> int:
    """The bits of a number, mixed: splitmix64 (Steele, Lea, Flood, 2014)."""
    mask = (1 << 64) - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & mask
    return number ^ number >> 31
