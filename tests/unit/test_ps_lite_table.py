"""A table cut at its keys, for MXNet's servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mxnet")

from hybridps.errors import LayoutError  # noqa: E402
from hybridps.kvstore.ps_lite.table import Table  # noqa: E402
from hybridps.memory import Layout  # noqa: E402
from hybridps.ps.clocks import BulkSynchronous  # noqa: E402
from hybridps.ps.model import TableSpec  # noqa: E402
from hybridps.ps.rules import Sum  # noqa: E402

sizes = st.lists(st.integers(0, 700), max_size=12)


def cut_at_keys(layout: Layout, chunk_bytes: int = 1024) -> Table:
    return Table(TableSpec(layout, Sum(), BulkSynchronous(), chunk_bytes, 0, 2))


def layout_of(lengths: list[int]) -> Layout:
    return Layout.of("float32", {str(key): (length,) for key, length in enumerate(lengths)})


@given(sizes, st.sampled_from([64, 1024, 4096]))
def test_chunks_cover_the_buffer_once_and_every_key_begins_one(lengths: list[int], chunk_bytes: int) -> None:
    layout = layout_of(lengths)
    chunks = cut_at_keys(layout, chunk_bytes).spans
    assert [0, *(chunk.stop for chunk in chunks)] == [*(chunk.start for chunk in chunks), layout.length]
    assert all(0 < 4 * (chunk.stop - chunk.start) <= chunk_bytes for chunk in chunks)
    starts = {chunk.start for chunk in chunks}
    assert all(slot.start in starts for slot in layout.slots if slot.size)


@given(sizes, st.data())
def test_a_span_of_whole_keys_is_its_chunks(lengths: list[int], data: st.DataObject) -> None:
    layout = layout_of(lengths)
    cut = cut_at_keys(layout)
    if not layout.slots:
        assert cut.spans[cut.between(0, 0)] == []
        return
    first, last = sorted(data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=2, max_size=2)))
    begin, end = layout.slots[first].start, layout.slots[last].stop
    found = cut.spans[cut.between(begin, end)]
    assert [chunk for chunk in cut.spans if begin <= chunk.start < end] == found


def test_a_span_inside_of_a_key_is_refused() -> None:
    cut = cut_at_keys(layout_of([100, 300]))
    assert cut.spans == [slice(0, 112), slice(112, 256), slice(256, 416)]
    assert cut.between(256, 412) == cut.between(256, 416) == slice(2, 3)
    for start, stop in ((0, 50), (16, 100), (112, 113), (112, 500), (256, 112), (-1, 112)):
        with pytest.raises(LayoutError, match="whole keys"):
            cut.between(start, stop)
