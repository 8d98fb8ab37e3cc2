"""How groups without servers begin with the same values: a group's tables, and what it learns about those of others.

The first group begins a table, and all others ask it. If it has given no sign of life for three times `lost_seconds`,
the lowest-numbered group that is there begins, as with servers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hybridps.errors import DeadlineError, LayoutError, ProtocolError
from hybridps.gossip.letter import HAS_BEGUN, IS_GONE, MOST_TEXT, Letter
from hybridps.memory import Layout

if TYPE_CHECKING:
    from hybridps.gossip.partners import Partners

_MOST_ASKED = 4
"""The number of tables that one group may ask for before they exist here. A group asks for one at a time."""

_layouts = msgspec.msgpack.Decoder(Layout)


@dataclass
class _Table:
    """A table of this group. `values`: the initial values that others may ask for."""

    layout: Layout
    how: str = ""
    """How groups gossip about the table."""
    values: np.ndarray | None = None
    has_begun: bool = False
    takers: set[int] = field(default_factory=set)


class Tables:
    """The tables of this group. Its `Partners` call `hear` on the reading thread, with their lock held."""

    def __init__(self, partners: Partners) -> None:
        self._partners = partners
        self._tables: dict[str, _Table] = {}
        self._gone: set[str] = set()
        """Tables of initial values that are no longer kept, because all groups have received them."""
        self._askers: dict[str, dict[int, tuple[Layout, str]]] = {}
        """The groups that have asked for tables that do not exist here yet."""
        self._asked: tuple[str, int, Layout] | None = None
        self._answer: tuple[Letter, np.ndarray | None] | None = None

    def share(self, table: str, layout: Layout, values: np.ndarray) -> bool:
        """Set `values` to those of the group that begins the table.

        Returns False if that group does not keep them any more; `values` are then unchanged. Raises LayoutError if its
        layout differs, and DeadlineError.
        """
        self._partners.expect(layout.nbytes)
        found = self._find(table, layout)
        if found is None:
            with self._partners.changed:
                self._add(table, _Table(layout, values=values.copy()))
            return True
        letter, payload = found
        if letter.kind == "give" and payload is not None:
            values[...] = payload.view(layout.dtype)
        return letter.kind == "give"

    def enter(self, table: str, layout: Layout, how: str) -> bool:
        """Join a table of weights. Returns whether other groups have averaged it already. Raises the errors of `share`.

        `how`: how groups gossip about the table, which must be the same in all groups.
        """
        found = self._find(table, layout, how)
        with self._partners.changed:
            self._add(table, _Table(layout, how))
        return found is not None and found[0].number == HAS_BEGUN

    def begin(self, table: str) -> None:
        """Note that this group has averaged a table: a group that joins from now on is late."""
        self._tables[table].has_begun = True

    def forget(self, table: str) -> None:
        """Forget a table that this group has dropped."""
        self._tables.pop(table, None)

    def hear(self, sender: int, letter: Letter, payload: np.ndarray | None) -> None:
        """Handle a letter about joining. Raises ProtocolError if it cannot be used."""
        if letter.kind != "ask":
            if self._asked is not None and self._answer is None and (letter.table, sender) == self._asked[:2]:
                if letter.kind == "give" and (payload is None or payload.nbytes != self._asked[2].nbytes):
                    raise ProtocolError(f"initial values of another length than table {letter.table!r} has")
                self._answer = letter, payload
            return
        layout = _layout_in(payload)
        if letter.table in self._tables:
            self._tell(sender, letter.table, layout, letter.text)
        elif letter.table in self._gone:
            self._partners.post(sender, "joined", letter.table, number=IS_GONE)
        elif sum(sender in asking for asking in self._askers.values()) < _MOST_ASKED:
            self._askers.setdefault(letter.table, {})[sender] = layout, letter.text

    def _add(self, table: str, known: _Table) -> None:
        self._tables[table] = known
        for asker, (layout, how) in self._askers.pop(table, {}).items():
            self._tell(asker, table, layout, how)

    def _tell(self, asker: int, table: str, layout: Layout, how: str) -> None:
        known, post = self._tables[table], self._partners.post
        if layout != known.layout:
            what = known.layout.difference(layout)
            said = f"group {asker} registers another layout of table {table!r} than group {self._partners.rank}: {what}"
            post(asker, "refuse", table, text=said[:MOST_TEXT])
        elif how != known.how:
            said = f"group {asker} gossips by {how!r}, and group {self._partners.rank} by {known.how!r}"
            post(asker, "refuse", table, text=f"{said}: give all groups the same settings"[:MOST_TEXT])
        elif known.values is None:
            post(asker, "joined", table, number=HAS_BEGUN if known.has_begun else 0)
        elif post(asker, "give", table, known.values):
            known.takers.add(asker)
            if known.takers == self._partners.peers.keys():
                del self._tables[table]
                self._gone.add(table)

    def _find(self, table: str, layout: Layout, how: str = "") -> tuple[Letter, np.ndarray | None] | None:
        """Return the answer of the lowest-numbered group that is there; None if that is this group."""
        since, seconds = time.monotonic(), self._partners.deadline_seconds
        while (left := since + seconds - time.monotonic()) > 0:
            lowest = self._lowest(since)
            if lowest == self._partners.rank:
                return None
            answer = self._ask(lowest, table, layout, how, since, left)
            if answer is not None and answer[0].kind == "refuse":
                raise LayoutError(answer[0].text)
            if answer is not None:
                return answer
        raise DeadlineError(
            f"group {self._lowest(since)} has not registered table {table!r} within {seconds:g} s: the groups do "
            "different things, or have not all been started"
        )

    def _ask(
        self, peer: int, table: str, layout: Layout, how: str, since: float, seconds: float
    ) -> tuple[Letter, np.ndarray | None] | None:
        """Ask a group about a table. Returns its answer; None if this or another group must be asked again."""
        partners = self._partners
        mine = np.frombuffer(msgspec.msgpack.encode(layout), np.uint8)
        with partners.changed:
            self._asked, self._answer = (table, peer, layout), None
            session = partners.peers[peer].session
            partners.post(peer, "ask", table, mine, text=how)

        def is_over() -> bool:
            begins_anew = session not in (0, partners.peers[peer].session)
            return self._answer is not None or begins_anew or self._lowest(since) != peer

        partners.until(is_over, min(seconds, 3 * partners.peers.lost_seconds))
        with partners.changed:
            answer, self._asked = self._answer, None
        return answer

    def _lowest(self, since: float) -> int:
        """Return the lowest-numbered group that is there or may still start."""
        before = (peer for peer in range(self._partners.rank) if not self._partners.peers.is_missing(peer, since))
        return next(before, self._partners.rank)


def _layout_in(payload: np.ndarray | None) -> Layout:
    """Decode the layout in a letter. Raises ProtocolError."""
    try:
        layout = _layouts.decode(b"" if payload is None else payload.tobytes())
        layout.check()
    except (ValueError, RecursionError, LayoutError) as error:
        raise ProtocolError(f"the layout cannot be used: {str(error)[:200]}") from None
    return layout
