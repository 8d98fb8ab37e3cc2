"""Tables of gradients, and the order in which a step reduces them: bucket by bucket, the last layers first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridps.algorithms import AnyRule, Rules
from hybridps.memory import Arena, Layout
from hybridps.tensor_collectives import Tensor


class KeySpec(NamedTuple):
    """What a key needs in a table. `vectors`: one for each device of the worker."""

    dtype: str
    shape: tuple[int, ...]
    vectors: int = 1


class Table:
    """The keys of one dtype and one number of vectors: a layout, and an arena for each vector.

    `weights`: where weights that servers update are written, if not over the gradients. `is_whole`: whether the table
    is always reduced as a whole.
    """

    def __init__(
        self, name: str, layout: Layout, tensor: Tensor, weights: Tensor | None = None, is_whole: bool = False
    ) -> None:
        self.name = name
        self.layout = layout
        self.tensor = tensor
        self.weights = weights
        self.arenas = [Arena(layout, vector) for vector in tensor.vectors]
        self.spans = _spans(layout)
        """For each key, the elements from its first one to the next key. Together they cover the whole layout."""
        self._is_whole = is_whole
        self._filled = [slot for slot in layout.slots if slot.size]
        self._starts = [slot.start for slot in self._filled]

    def views(self, key: str) -> list[np.ndarray]:
        """Return the arrays of a key, in its shape, one for each vector, in the memory of the arenas."""
        return [arena.view(key) for arena in self.arenas]

    def elements_reduced(self, bucket_bytes: int) -> int:
        """Return the largest number of elements that are reduced together."""
        return self.layout.length if self._is_whole else bucket_bytes // self.layout.itemsize

    def rules(self, start: int, stop: int, rule_of: Callable[[str], Any]) -> Rules:
        """Return the rules of elements `start:stop`, given the rule of each key."""
        found: list[tuple[int, AnyRule]] = []
        for number in range(bisect_right(self._starts, start) - 1, bisect_left(self._starts, stop)):
            key = self._filled[number].key
            rule, end = rule_of(key), min(self.spans[key][1], stop)
            if found and found[-1][1] == rule:
                found.pop()
            found.append((end, rule))
        return tuple(found)

    def key_at(self, element: int) -> str:
        """Return the key that has this element; for padding, the key before it."""
        return self._filled[bisect_right(self._starts, element) - 1].key


def lay_out(
    prefix: str, keys: Mapping[str, KeySpec], first: int = 0, one_each: bool = False
) -> dict[str, tuple[Layout, int]]:
    """Return the layout and the number of vectors of each table, by its name: `prefix` and a number, from `first` on.

    There is a table for each dtype and number of vectors, or one for each key. Raises LayoutError for a dtype that
    cannot be laid out.
    """
    kinds: dict[tuple[str, int, str], dict[str, tuple[int, ...]]] = {}
    for name, spec in keys.items():
        kinds.setdefault((spec.dtype, spec.vectors, name if one_each else ""), {})[name] = spec.shape
    return {
        f"{prefix}{number}": (Layout.of(dtype, shapes), vectors)
        for number, ((dtype, vectors, _), shapes) in enumerate(kinds.items(), first)
    }


def _spans(layout: Layout) -> dict[str, tuple[int, int]]:
    stops = [*(slot.start for slot in layout.slots[1:]), layout.length]
    return {slot.key: (slot.start, stop) for slot, stop in zip(layout.slots, stops, strict=True)}


class Span(NamedTuple):
    """Elements `start:stop` of a table."""

    table: Table
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The number of bytes of the span in one vector."""
        return (self.stop - self.start) * self.table.layout.itemsize


class Bucket(NamedTuple):
    """What is reduced together. `spans`, at least one, leave out keys that are not expected.

    `completes`: those of its keys of which later buckets have nothing.
    """

    spans: tuple[Span, ...]
    keys: tuple[str, ...]
    completes: tuple[str, ...]

    def spans_of(self, keys: Iterable[str]) -> tuple[Span, ...]:
        """Return what these of its keys have of the bucket."""
        table, start, stop = self.spans[0].table, self.spans[0].start, self.spans[-1].stop
        spans = (table.spans[key] for key in keys)
        return tuple(merged([Span(table, max(begin, start), min(end, stop)) for begin, end in spans]))


class Plan:
    """The buckets of a step. `buckets_of`: for each expected key, the numbers of the buckets that it lies in."""

    def __init__(self, buckets: Sequence[Bucket] = ()) -> None:
        self.buckets = tuple(buckets)
        self.buckets_of: dict[str, list[int]] = {}
        for number, bucket in enumerate(self.buckets):
            for key in bucket.keys:
                self.buckets_of.setdefault(key, []).append(number)
        self.last_keys = [bucket.keys[0] for bucket in self.buckets]
        """For each bucket, the key that arrived last in the latest step: likely the last one of the next step too."""
        self._bundles: dict[range, Bucket] = {}

    def bundles(self, first: int, end: int, most: int) -> Iterator[Bucket]:
        """Yield buckets `first:end` joined: at most `most` that follow one another in a table."""
        while first < end:
            table, last = self.buckets[first].spans[0].table, first + 1
            while last < min(end, first + most) and self.buckets[last].spans[0].table is table:
                last += 1
            bundle = self._bundles.get(range(first, last))
            if bundle is None:
                bundle = self._bundles[range(first, last)] = _joined(self.buckets[first:last])
            yield bundle
            first = last


NOTHING = Plan()


def make_plan(tables: Sequence[Table], expected: frozenset[str], bucket_bytes: int) -> Plan:
    """Return the plan of a step in which these keys are expected. Keys without elements are left out."""
    buckets = [
        bucket
        for table in reversed(tables)
        for bucket in _buckets(table, expected, table.elements_reduced(bucket_bytes))
    ]
    return Plan(buckets)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the same elements in as few spans as possible, in the order of the tables' names and of the elements."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.table.name, span.start)):
        if joined and joined[-1].table is span.table and joined[-1].stop >= span.start:
            joined[-1] = joined[-1]._replace(stop=max(span.stop, joined[-1].stop))
        elif span.stop > span.start:
            joined.append(span)
    return joined


def parts(span: Span, bucket_bytes: int) -> Iterable[Span]:
    """Yield the span in parts of at most one bucket."""
    step = span.table.elements_reduced(bucket_bytes)
    start = span.start
    while start < span.stop:
        stop = min(start - start % step + step, span.stop)
        yield Span(span.table, start, stop)
        start = stop


def _buckets(table: Table, expected: frozenset[str], step: int) -> list[Bucket]:
    """Return the buckets of one table, from its end to its beginning."""
    keys: dict[int, list[str]] = {}
    for key, (start, stop) in table.spans.items():
        if key in expected and stop > start:
            for number in range(start // step, -(-stop // step)):
                keys.setdefault(number, []).append(key)
    return [_bucket(table, number * step, step, keys[number]) for number in sorted(keys, reverse=True)]


def _joined(buckets: Sequence[Bucket]) -> Bucket:
    """Return what buckets of one table have, from its end to its beginning, as one bucket."""
    spans = merged(span for bucket in buckets for span in bucket.spans)
    keys = dict.fromkeys(key for bucket in reversed(buckets) for key in bucket.keys)
    return Bucket(tuple(spans), tuple(keys), tuple(key for bucket in buckets for key in bucket.completes))


def _bucket(table: Table, start: int, step: int, keys: list[str]) -> Bucket:
    spans = (table.spans[key] for key in keys)
    clipped = [Span(table, max(begin, start), min(end, start + step)) for begin, end in spans]
    return Bucket(tuple(merged(clipped)), tuple(keys), tuple(key for key in keys if table.spans[key][0] >= start))
