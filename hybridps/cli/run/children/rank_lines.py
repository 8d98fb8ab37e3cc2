"""Separates the lines of single ranks in the one stream through which mpirun passes the output of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hybridps.cli.run.children.output import LineSplitter

_PART = re.compile(rb"\[[\d,]*(\](<(\w+>?:?)?)?)?\Z")
"""An incomplete tag at the end of what has been read."""


class RankSplitter:
    """Splits the bytes of a stream of mpirun into lines, each with the number of the rank that has written it.

    `tag` matches what mpirun writes before the bytes of a rank, with the rank as its group 1. These bytes extend to the
    next tag or the end of their line. The number is None for lines without a tag: the lines of mpirun itself, or all
    lines if `tag` is None.
    """

    def __init__(self, tag: re.Pattern[bytes] | None = None) -> None:
        self._tag = tag
        self._rest = b""
        self._rank: int | None = None
        """The rank of the bytes that follow."""
        self._splitters: dict[int | None, LineSplitter] = {}

    def feed(self, data: bytes) -> Iterator[tuple[int | None, str]]:
        """Yield the lines that these bytes complete."""
        if self._tag is None:
            yield from ((None, line) for line in self._of(None).feed(data))
            return
        data = self._rest + data
        part = _PART.search(data)
        data, self._rest = (data[: part.start()], data[part.start() :]) if part else (data, b"")
        yield from self._tagged(data, self._tag)

    def end(self) -> Iterator[tuple[int | None, str]]:
        """Yield the last line of each rank, if it did not end."""
        yield from self._given(self._rest)
        for rank, splitter in self._splitters.items():
            yield from ((rank, line) for line in splitter.end())

    @property
    def transient(self) -> tuple[int | None, str]:
        """The current text of a line that rewrites itself, such as a progress bar, of the rank that wrote last."""
        return self._rank, self._of(self._rank).transient

    def _tagged(self, data: bytes, tag: re.Pattern[bytes]) -> Iterator[tuple[int | None, str]]:
        start = 0
        for found in tag.finditer(data):
            yield from self._given(data[start : found.start()])
            self._rank, start = int(found[1]), found.end()
        yield from self._given(data[start:])

    def _given(self, data: bytes) -> Iterator[tuple[int | None, str]]:
        while data:
            line, newline, data = data.partition(b"\n")
            yield from ((self._rank, text) for text in self._of(self._rank).feed(line + newline))
            if newline:
                self._rank = None

    def _of(self, rank: int | None) -> LineSplitter:
        return self._splitters.setdefault(rank, LineSplitter())
