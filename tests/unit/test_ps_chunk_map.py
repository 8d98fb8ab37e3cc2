from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.errors import LayoutError
from hybridps.memory import Layout
from hybridps.ps.chunk_map import MOST_CHUNKS, ChunkMap, Span


def layout_of(length, dtype="float32"):
    """A layout with one key; its buffer ends at a multiple of 64 bytes."""
    return Layout.of(dtype, {"w": (length,)})


def spans_of(chunk_map):
    return [chunk_map.whole(chunk) for chunk in range(chunk_map.count)]


def assign(spans, servers):
    """Longest-processing-time-first balance, as it is defined: the longest to the server with the least so far."""
    loads = [(0, server) for server in range(servers)]
    owner = [0] * len(spans)
    for span in sorted(spans, key=lambda span: (-span.length, span.chunk)):
        load, server = heapq.heappop(loads)
        owner[span.chunk] = server
        heapq.heappush(loads, (load + span.length, server))
    return owner


@pytest.mark.parametrize(
    ("length", "dtype", "edges"),
    [
        (0, "float32", []),
        (1, "float32", [(0, 16)]),
        (16, "float32", [(0, 16)]),
        (17, "float32", [(0, 16), (16, 32)]),
        (20, "float64", [(0, 8), (8, 16), (16, 24)]),
    ],
)
def test_cuts_at_multiples(length, dtype, edges):
    chunk_map = ChunkMap(layout_of(length, dtype), 64, 1)
    assert spans_of(chunk_map) == [Span(chunk, *edge) for chunk, edge in enumerate(edges)]


@given(st.integers(0, 5000), st.sampled_from(["float16", "float32", "float64"]), st.integers(1, 40))
def test_chunks_cover_the_buffer_once(length, dtype, elements):
    layout = layout_of(length, dtype)
    spans = spans_of(ChunkMap(layout, elements * layout.itemsize, 3))
    assert [i for span in spans for i in range(span.start, span.stop)] == list(range(layout.length))
    assert all(span.length == elements for span in spans[:-1])


@pytest.mark.parametrize(
    ("length", "chunk_bytes", "named"),
    [
        (1, 0, "chunk_bytes=0"),
        (1, -64, "chunk_bytes=-64"),
        (1, 63, "chunk_bytes=63"),
        ((MOST_CHUNKS + 1) * 16, 64, "larger chunk_bytes"),
    ],
)
def test_refuses_what_cannot_be_cut(length, chunk_bytes, named):
    with pytest.raises(LayoutError, match=named):
        ChunkMap(layout_of(length), chunk_bytes, 1)


def test_refuses_no_server():
    with pytest.raises(LayoutError, match="0 servers"):
        ChunkMap(layout_of(1), 64, 0)


def owned_by(chunk_map, server):
    return chunk_map.owned_between(server, 0, chunk_map.layout.length)


@given(st.integers(0, 3000), st.integers(1, 40), st.integers(1, 9), st.integers(1, 5))
def test_owners_are_those_of_longest_first(length, elements, servers, threads):
    """Round robin is what that balance comes to, for servers and for the threads of each; nothing is sorted for it."""
    chunk_map = ChunkMap(layout_of(length), 4 * elements, servers)
    spans = spans_of(chunk_map)
    owned = [owned_by(chunk_map, server) for server in range(servers)]
    owner = assign(spans, servers)
    assert [[*chunks] for chunks in owned] == [
        [chunk for chunk in range(chunk_map.count) if owner[chunk] == server] for server in range(servers)
    ]
    for chunks in owned:
        mine = [spans[chunk]._replace(chunk=place) for place, chunk in enumerate(chunks)]
        assert assign(mine, threads) == [chunk // servers % threads for chunk in chunks]


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 9))
def test_loads_are_within_the_longest_chunk(length, elements, servers):
    chunk_map = ChunkMap(layout_of(length), 4 * elements, servers)
    loads = [sum(chunk_map.whole(chunk).length for chunk in owned_by(chunk_map, server)) for server in range(servers)]
    assert sum(loads) == chunk_map.layout.length
    assert max(loads) - min(loads) <= elements


@given(st.data(), st.integers(0, 600), st.integers(1, 40), st.integers(1, 5))
def test_spans_of_all_servers_are_the_elements_once(data, length, elements, servers):
    chunk_map = ChunkMap(layout_of(length), 4 * elements, servers)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, chunk_map.layout.length)] * 2)))
    spans = [[*chunk_map.spans(server, start, stop)] for server in range(servers)]
    assert sorted(i for own in spans for span in own for i in range(span.start, span.stop)) == [*range(start, stop)]
    for server, own in enumerate(spans):
        assert [span.chunk for span in own] == [*chunk_map.owned_between(server, start, stop)]
        for span in own:
            whole = chunk_map.whole(span.chunk)
            assert span.chunk in owned_by(chunk_map, server)
            assert whole.start <= span.start < span.stop <= whole.stop


def test_the_first_server_owns_a_chunk_if_any_does():
    chunk_map = ChunkMap(layout_of(5), 64, 3)
    assert [len(owned_by(chunk_map, server)) for server in range(3)] == [1, 0, 0]


@pytest.fixture
def chunk_map():
    return ChunkMap(layout_of(40), 64, 2)


def test_map_shares_out_all_chunks(chunk_map):
    assert chunk_map.layout.length == 48
    assert sorted((*owned_by(chunk_map, 0), *owned_by(chunk_map, 1))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("start", "stop", "chunks"),
    [
        (0, 48, [0, 1, 2]),
        (16, 32, [1]),
        (16, 48, [1, 2]),
        (0, 0, []),
        (48, 48, []),
        (20, 20, []),
        (15, 17, [0, 1]),
        (17, 18, [1]),
    ],
)
def test_between(chunk_map, start, stop, chunks):
    owned = [chunk for server in range(2) for chunk in chunk_map.owned_between(server, start, stop)]
    assert sorted(owned) == chunks


@pytest.mark.parametrize(("start", "stop"), [(-16, 16), (32, 16), (0, 64), (49, 49)])
def test_elements_that_do_not_exist_are_refused(chunk_map, start, stop):
    with pytest.raises(LayoutError, match=f"{start}:{stop} are not within the 48"):
        chunk_map.check_span(start, stop)


def test_any_elements_of_the_buffer_are_a_span(chunk_map):
    for start, stop in ((1, 16), (0, 17), (48, 48), (0, 48)):
        chunk_map.check_span(start, stop)


@pytest.mark.parametrize(
    "array",
    [np.zeros(47, np.float32), np.zeros(48, np.float64), np.zeros((48, 1), np.float32), np.zeros(96, np.float32)[::2]],
)
def test_check_array_refuses(chunk_map, array):
    with pytest.raises(LayoutError, match=r"contiguous \(48,\) of float32"):
        chunk_map.check_array(array)


def test_check_array_accepts(chunk_map):
    chunk_map.check_array(np.zeros(48, np.float32))


def test_nothing_grows_with_the_buffer():
    """The map of the largest table is made in no time, and has no object for each chunk."""
    chunk_map = ChunkMap(layout_of(MOST_CHUNKS), 4, 4096)
    assert chunk_map.count == MOST_CHUNKS
    assert isinstance(owned_by(chunk_map, 0), range)
    assert not any(hasattr(value, "__len__") and len(value) > 100 for value in vars(chunk_map).values())


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_chunks_are_dealt_from_the_first_number_on(servers):
    layout = layout_of(1000)
    for first in (0, 1, 5, 4_000_000_000):
        chunk_map = ChunkMap(layout, 64, servers, first)
        owners = {
            chunk: owner for owner in range(servers) for chunk in chunk_map.owned_between(owner, 0, layout.length)
        }
        assert owners == {chunk: (chunk + first) % servers for chunk in range(chunk_map.count)}
        for chunk in owners:
            assert chunk_map.thread_of(chunk, 3) == (chunk + first) // servers % 3
