"""Topologies: to which groups a group sends in a step. They are pure functions of step, rank, size and seed.

A step is one sending of a group, so that groups that send seldom still reach all of their peers. Each topology connects
all groups: within the steps of its period, each group reaches each other one, directly or through others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hybridps.errors import ConfigError, did_you_mean

Peers = tuple[int, ...]
_CYCLES = 2
"""The number of rings in a random regular graph: each group has four neighbours."""


def ring(step: int, rank: int, size: int, seed: int) -> Peers:
    """Return the next group of a ring and the previous one, alternately.

    >>> [ring(step, 0, 4, 0) for step in range(3)]
    [(1,), (3,), (1,)]
    """
    return ((rank + (-1 if step % 2 else 1)) % size,) if size > 1 else ()


def exponential(step: int, rank: int, size: int, seed: int) -> Peers:
    """Return the groups that are 1, 2, 4, ... places further, in turn (Assran et al., 2019).

    >>> [exponential(step, 1, 6, 0) for step in range(4)]
    [(2,), (3,), (5,), (2,)]
    """
    return ((rank + (1 << step % _powers(size))) % size,) if size > 1 else ()


def regular(step: int, rank: int, size: int, seed: int) -> Peers:
    """Return the neighbours in a random regular graph, in turn: the union of two random rings, drawn by the seed."""
    if size < 2:
        return ()
    turn = step % (2 * _CYCLES)
    return (_cycle(size, seed, turn // 2)[turn % 2][rank],)


def complete(step: int, rank: int, size: int, seed: int) -> Peers:
    """Return all other groups, in every step."""
    return tuple(peer for peer in range(size) if peer != rank)


def random_peer(step: int, rank: int, size: int, seed: int) -> Peers:
    """Return another group, each with the same chance, drawn anew in each step."""
    if size < 2:
        return ()
    other = _mixed(_mixed(_mixed(seed) ^ step) ^ rank) % (size - 1)
    return (other + (other >= rank),)


class Topology(NamedTuple):
    """A topology by name, with the seed of its random choices."""

    name: str
    seed: int = 0

    def peers(self, step: int, rank: int, size: int) -> Peers:
        """Return the groups to which `rank` of `size` groups sends in a step."""
        return _FUNCTIONS[self.name](step, rank, size, self.seed)

    def period(self, size: int) -> int:
        """Return after how many steps the peers repeat.

        For `random`, it is the number of steps in which all groups are almost certainly connected.
        """
        periods = {"ring": 2, "exponential": _powers(size), "regular": 2 * _CYCLES, "complete": 1}
        return periods.get(self.name, 16 + 4 * size)

    def neighbours(self, rank: int, size: int) -> Peers:
        """Return all groups to which `rank` sends in some step."""
        if self.name == "random":
            return complete(0, rank, size, 0)
        found = {peer for step in range(self.period(size)) for peer in self.peers(step, rank, size)}
        return tuple(sorted(found))

    def mixing(self, step: int, size: int) -> np.ndarray:
        """Return the matrix (size, size) of a step in which all groups send. Column j is what group j gives.

        Each group keeps as much as each of its peers gets. Columns sum to 1; rows do too, except with `random`.
        """
        matrix = np.zeros((size, size))
        for rank in range(size):
            receivers = (rank, *self.peers(step, rank, size))
            matrix[list(receivers), rank] = 1 / len(receivers)
        return matrix


def parse(text: str) -> Topology:
    """Make a topology from `NAME` or `NAME:SEED`. Raises ConfigError, with the nearest name.

    >>> parse("random:7")
    Topology(name='random', seed=7)
    """
    name, colon, seed = text.strip().partition(":")
    if name not in _FUNCTIONS:
        nearest = did_you_mean(name, [*_FUNCTIONS])
        raise ConfigError(f"topology {text!r} is unknown{nearest} Known: {', '.join(_FUNCTIONS)}")
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
    """Return the number of powers of two below a size; at least 1."""
    return max(1, (size - 1).bit_length())


@lru_cache(maxsize=64)
def _cycle(size: int, seed: int, number: int) -> tuple[Peers, Peers]:
    """Return the next and the previous group of each group in a random ring."""
    order = np.random.default_rng((seed, number)).permutation(size)
    following, before = np.empty(size, int), np.empty(size, int)
    following[order] = np.roll(order, -1)
    before[order] = np.roll(order, 1)
    return tuple(following.tolist()), tuple(before.tolist())


def _mixed(number: int) -> int:
    """Mix the bits of a number: splitmix64 (Steele, Lea, Flood, 2014)."""
    mask = (1 << 64) - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & mask
    return number ^ number >> 31
