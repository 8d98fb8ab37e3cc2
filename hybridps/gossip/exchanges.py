"""What the leader of a group does about one table: take in what others have sent, answer it, and send to others.

No method waits. Letters about weights are numbered, and each is answered. A group asks a partner again only after the
partner has answered, was given up, or has begun a new life. Arrays are flat, of the table's dtype, and changed in
place.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridps.gossip.inbox import Incoming
from hybridps.gossip.letter import ANSWERS, Kind
from hybridps.gossip.partners import Partners
from hybridps.gossip.partnership import PartnerChoice, Partnership
from hybridps.gossip.topologies import Peers
from hybridps.memory import Layout
from hybridps.ps.rules.finite import check_finite

Span = tuple[int, int]

MOST_SPANS = 4
"""The number of spans that one group sends to another at a time. Neighbouring spans are merged, with what lies
between."""

_MOST_ASKED = 3
"""The number of partners that may have an open request for a symmetric average. One step of the topology may exceed
it."""

_LEARNT = 0.3
"""The weight of the latest answer in the moving average of a partner's time."""


@dataclass
class Request:
    """An offer, pull or push without an answer. `given_up`: the group does not wait for the answer any more."""

    kind: Kind
    peer: int
    session: int
    share: float
    start: int
    stop: int
    sent_at: float
    given_up: bool = False


class Exchange:
    """The symmetric average, and pull. Only the thread that averages calls the methods.

    The group that begins sends its weights w_i (`offer`). The partner, whose weights are w_j when the offer is taken
    in, computes

        d = (w_i - w_j) / 2,    w_j <- w_j + d,

    and answers d. The first group subtracts d from its weights at that time, so that the sum of both is conserved.

    A group that asks k partners at a time, while it waits for n others, gets several d for the same weights. With
    halves it would move beyond all of its partners. So it asks that each d be at most a `share` of 1 / (1 + k + n) of
    the difference. A partner that waits for m answers itself gives at most 1 / (2 + m); otherwise two groups that ask
    each other at the same time would swap their weights.

    With `pull`, the partner answers w_j, and w_i <- (w_i + w_j) / 2. The partner does not change, and the sum is not
    conserved.
    """

    def __init__(self, partners: Partners, table: str, layout: Layout, partnership: Partnership, late: bool) -> None:
        self.distance = math.nan
        """|w - w_j| / |w| at the last exchange."""
        self.late = late
        """Whether this group is late, so that it must take the weights over from a partner."""
        self.touched: list[Span] = []
        """The spans that the last `take_in` and `begin` have exchanged."""
        self._partners = partners
        self._table = table
        self._kind = partnership.exchange
        self._took_over = False
        """Whether this group was late, and has taken over another group's weights since."""
        self._choice = PartnerChoice(partnership, partners.rank, partners.size)
        self._scratch = np.empty(layout.length, layout.dtype)
        self._requests: dict[int, Request] = {}
        self._number = 0
        self._seconds: dict[int, float] = {}
        self._late_since = time.monotonic()
        self._returned: set[int] = set()
        """The groups whose weights are still initial values, as far as this one knows."""

    def take_in(self, weights: np.ndarray, settles: bool = False) -> bool:
        """Take in the letters that have arrived. Returns whether the weights have changed.

        `settles`: this group waits at a barrier until all is taken in, so it does not wait long for groups that may
        wait for it at a later barrier.
        """
        self.touched.clear()
        self._give_up(settles)
        letters, returned = self._partners.take(self._table)
        self._returned = returned
        changed, queue, left = False, deque(letters), list[Incoming]()
        while queue:
            incoming = queue.popleft()
            answer = self._answer_for(incoming, weights, returned)
            if answer is None:
                left.append(incoming)
            changed = changed or bool(answer)
        if left:
            self._partners.put_back(self._table, left)
        return changed

    def begin(self, weights: np.ndarray, spans: Sequence[Span]) -> int:
        """Send these spans to the next partners; neighbouring spans may be merged. Returns the number of bytes sent.

        Raises NotFiniteError for weights with NaN or Inf.
        """
        before = self._partners.bytes_sent
        if self.late:
            self._take_over(weights.size)
            return 0
        peers = self._choice.next(self._may_ask, self._seconds.get) if spans else ()
        for peer in self._returned.intersection(peers):
            self._ask(peer, "behind", 0, weights.size)
        peers = tuple(peer for peer in peers if peer not in self._returned)
        for start, stop in merged(spans, MOST_SPANS) if peers else ():
            check_finite(weights[start:stop], f"table {self._table!r} of this group")
            if self._send(peers, start, stop, weights):
                self.touched.append((start, stop))
        return self._partners.bytes_sent - before

    @property
    def is_quiet(self) -> bool:
        """Whether this group waits for no answer."""
        return all(request.given_up for request in self._requests.values())

    def _send(self, peers: Peers, start: int, stop: int, weights: np.ndarray) -> int:
        """Send a span to these peers. Returns to how many of them it was sent."""
        if self._kind == "pull":
            return sum(self._ask(peer, "pull", start, stop) for peer in peers)
        share = 1 / (1 + len(peers) + self._under_way(start, stop))
        return sum(self._ask(peer, "offer", start, stop, weights[start:stop], share) for peer in peers)

    def _ask(
        self, peer: int, kind: Kind, start: int, stop: int, values: np.ndarray | None = None, share: float = 0.0
    ) -> bool:
        """Send a request. Returns whether it was sent."""
        fields = {"number": self._number + 1, "start": start, "stop": stop, "share": share}
        if not self._partners.post(peer, kind, self._table, values, **fields):
            return False
        self._number += 1
        session = self._partners.peers[peer].session
        self._requests[self._number] = Request(kind, peer, session, share or 1 / 2, start, stop, time.monotonic())
        return True

    def _may_ask(self, peer: int) -> bool:
        asked = {request.peer for request in self._requests.values() if not request.given_up}
        if peer in asked or (self._kind == "symmetric" and len(asked) >= _MOST_ASKED):
            return False
        return self._partners.peers.is_there(peer)

    def _under_way(self, start: int, stop: int) -> int:
        """Return the number of requests about any of these elements whose answer the group waits for."""
        waited = (request for request in self._requests.values() if not request.given_up)
        return sum(request.start < stop and start < request.stop for request in waited)

    def _answer_for(self, incoming: Incoming, weights: np.ndarray, returned: set[int]) -> bool | None:
        """Take in a letter. Returns whether the weights have changed, or None if its answer cannot be sent yet."""
        sender, letter, values = incoming
        if letter.kind in ANSWERS:
            request = self._requests.get(letter.number)
            if request is None or request.peer != sender or request.session != letter.session:
                return False
            return self._take_answer(incoming, request, weights)
        if letter.kind == "behind":
            self._is_late()
            return False if self._post(sender, "taken", letter.number) else None
        if sender in returned or self.late:
            # The sender's weights, or this group's own, are still initial values.
            told = self._post(sender, "late" if sender in returned else "decline", letter.number)
            if told:
                returned.discard(sender)
            return False if told else None
        return self._take_request(incoming, weights)

    def _take_request(self, incoming: Incoming, weights: np.ndarray) -> bool | None:
        sender, letter, values = incoming
        span = weights[letter.start : letter.stop]
        if letter.kind == "pull":
            posted = self._post(sender, "values", letter.number, span, start=letter.start, stop=letter.stop)
            return False if posted else None
        if letter.kind != "offer" or values is None or self._kind != "symmetric":
            return False if self._post(sender, "decline", letter.number) else None
        factor = min(1 / (2 + self._under_way(letter.start, letter.stop)), letter.share or 1 / 2)
        difference = self._difference(values, span, factor)
        if difference is None:
            return False if self._post(sender, "decline", letter.number) else None
        if not self._post(sender, "difference", letter.number, difference, start=letter.start, stop=letter.stop):
            return None
        np.add(span, difference, out=span)
        self._note(letter.start, letter.stop, span, difference, 1 / factor)
        return True

    def _take_answer(self, incoming: Incoming, request: Request, weights: np.ndarray) -> bool:
        sender, letter, values = incoming
        if values is not None and (letter.start, letter.stop) != (request.start, request.stop):
            return False
        del self._requests[letter.number]
        self._measure(sender, time.monotonic() - request.sent_at)
        if request.kind == "behind" and letter.kind == "taken":
            self._returned.discard(sender)
        if letter.kind == "late":
            self._is_late()
        if values is None:
            return False
        span = weights[letter.start : letter.stop]
        if letter.kind == "difference":
            if not is_finite(values):
                return False
            np.subtract(span, values, out=span)
            self._note(letter.start, letter.stop, span, values, 1 / request.share)
            return True
        if self.late and span.size == weights.size and is_finite(values):
            np.copyto(span, values)
            self.late, self._took_over = False, True
            self.touched.append((letter.start, letter.stop))
            return True
        difference = self._difference(values, span, 0.5)
        if difference is None or self._kind != "pull":
            return False
        np.add(span, difference, out=span)
        self._note(letter.start, letter.stop, span, difference, 2)
        return True

    def _difference(self, values: np.ndarray, span: np.ndarray, factor: float) -> np.ndarray | None:
        """Return factor (values - span), or None if that is not finite."""
        difference = self._scratch[: span.size]
        np.subtract(values, span, out=difference)
        np.multiply(difference, difference.dtype.type(factor), out=difference)
        return difference if is_finite(difference) else None

    def _post(self, to: int, kind: Kind, number: int, values: np.ndarray | None = None, **span: int) -> bool:
        return self._partners.post(to, kind, self._table, values, number=number, **span)

    def _note(self, start: int, stop: int, span: np.ndarray, difference: np.ndarray, times: float) -> None:
        """Note that a span was averaged by `difference`, of which `times` make the whole distance."""
        self.touched.append((start, stop))
        size = float(np.linalg.norm(span))
        self.distance = times * float(np.linalg.norm(difference)) / size if size else math.nan

    def _measure(self, peer: int, seconds: float) -> None:
        known = self._seconds.get(peer, seconds)
        self._seconds[peer] = (1 - _LEARNT) * known + _LEARNT * seconds

    def _take_over(self, length: int) -> None:
        """Ask the next partner for its weights, unless a request is open. Stop trying when no group has any.

        A partner that gives signs of life may validate for a long time, so the group waits for its answer.
        """
        if not self.is_quiet:
            return
        if time.monotonic() - self._late_since > 3 * self._partners.peers.lost_seconds:
            self.late = False
        else:
            for peer in self._choice.next(self._may_ask, self._seconds.get)[:1]:
                self._ask(peer, "pull", 0, length)

    def _is_late(self) -> None:
        """Note that another group's table is far ahead, unless this group has taken weights over since."""
        if not self._took_over and not self.late:
            self.late, self._late_since = True, time.monotonic()

    def _give_up(self, settles: bool) -> None:
        """Give up requests to partners that are gone or have a new life, and requests whose letters must be lost.

        A partner that gives signs of life may validate for a long time, and weights may take long over a slow link.
        """
        peers = self._partners.peers
        for number, request in list(self._requests.items()):
            there = peers.is_there(request.peer)
            is_same = request.session == peers[request.peer].session
            waits_for_us = settles and peers.is_ahead(request.peer)
            patience = peers.lost_seconds if waits_for_us else self._partners.deadline_seconds
            too_long = time.monotonic() - request.sent_at > patience
            if not request.given_up and (not there or not is_same or too_long):
                request.given_up = True
                self._was_given_up(number, request)
            if not is_same:  # otherwise an answer may still arrive, and counts
                self._was_lost(number, request)
                del self._requests[number]

    def _was_given_up(self, number: int, request: Request) -> None:
        """Take back what a request gave away. An offer or pull gives nothing away."""

    def _was_lost(self, number: int, request: Request) -> None:
        """Note that a request will never be answered."""


def merged(spans: Sequence[Span], most: int) -> list[Span]:
    """Return at most `most` spans that cover these spans, which are in order. The nearest ones are merged.

    >>> merged([(0, 2), (3, 5), (20, 22), (26, 28)], 2)
    [(0, 5), (20, 28)]
    """
    gaps = [following[0] - span[1] for span, following in itertools.pairwise(spans)]
    widest = sorted(sorted(range(len(gaps)), key=gaps.__getitem__)[max(0, len(gaps) - most + 1) :])
    firsts, lasts = [0, *(gap + 1 for gap in widest)], [*widest, len(spans) - 1]
    return [(spans[first][0], spans[last][1]) for first, last in zip(firsts, lasts, strict=True)]


def is_finite(values: np.ndarray) -> bool:
    return math.isfinite(float(np.add.reduce(values, dtype=np.float64)))
