"""Groups that gossip, in one process: each with a mail over ZeroMQ of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import zmq

from hybridps.config import Settings
from hybridps.gossip import Exchange, Partners, Partnership, make_exchange
from hybridps.gossip.socket_mail import SocketMail
from hybridps.memory import Layout

LAYOUT = Layout.of("float32", {"a": (37, 5), "b": (300,)})
SETTINGS = Settings(lost_seconds=2.0, heartbeat_seconds=0.1, deadline_seconds=10.0)
TABLE = "weights"
SECONDS = 10.0

_circles = itertools.count()


class Circle:
    """Addresses of `size` groups, and those of the groups that are there.

    They are inproc://, which a group cannot listen at a second time, or in a `folder`.
    """

    def __init__(self, size: int, settings: Settings = SETTINGS, folder: Path | None = None) -> None:
        self.size = size
        self.settings = settings
        self.context = zmq.Context() if folder is None else None
        number = next(_circles)
        where = f"inproc://circle-{number}" if folder is None else f"ipc://{folder}/circle-{number}"
        self.addresses = [f"{where}-{rank}" for rank in range(size)]
        self.there: dict[int, Partners] = {}

    def open(self, rank: int) -> Partners:
        self.there[rank] = Partners(SocketMail(self.addresses, rank, context=self.context), self.settings)
        return self.there[rank]

    def end(self, rank: int, says_so: bool = True) -> None:
        """End a group; without saying so, as if it was killed."""
        partners = self.there.pop(rank)
        if says_so:
            partners.leave()
        partners.close()

    def close(self) -> None:
        if self.context is not None:
            self.context.destroy(linger=0)

    def wait_until_all_know_each_other(self) -> None:
        for rank, partners in self.there.items():
            others = [peer for peer in self.there if peer != rank]
            assert partners.until(lambda p=partners, o=others: all(map(p.peers.is_there, o)), SECONDS)  # type: ignore[misc]


@contextmanager
def circle(size: int, settings: Settings = SETTINGS, folder: Path | None = None) -> Iterator[Circle]:
    """All groups of a circle, which know each other."""
    made = Circle(size, settings, folder)
    try:
        for rank in range(size):
            made.open(rank)
        made.wait_until_all_know_each_other()
        yield made
    finally:
        for rank in list(made.there):
            made.end(rank)
        made.close()


def exchange_of(partners: Partners, partnership: Partnership, layout: Layout = LAYOUT) -> Exchange:
    """Join the table."""
    late = partners.tables.enter(TABLE, layout, f"{partnership}")
    partners.open(TABLE, layout)
    return make_exchange(partners, TABLE, layout, partnership, late)


def start_weights(size: int, layout: Layout = LAYOUT) -> list[np.ndarray]:
    return [np.random.default_rng(rank).standard_normal(layout.length).astype(layout.dtype) for rank in range(size)]


def settle(exchanges: Sequence[Exchange], weights: Sequence[np.ndarray]) -> None:
    """Take in until nothing is under way."""
    first = exchanges[0]._partners

    def all_are_quiet() -> bool:
        for exchange, own in zip(exchanges, weights, strict=True):
            exchange.take_in(own)
        return all(exchange.is_quiet for exchange in exchanges)

    assert first.until(all_are_quiet, SECONDS)
