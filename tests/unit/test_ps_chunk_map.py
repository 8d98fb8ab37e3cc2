from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.errors import LayoutError
from hybridps.memory import Layout
from hybridps.ps.chunk_map import MOST_CHUNKS, Chunk, ChunkMap, assign, chunks_of


@pytest.mark.parametrize(
    ("length", "itemsize", "chunk_bytes", "edges"),
    [
        (0, 4, 64, []),
        (1, 4, 64, [(0, 1)]),
        (16, 4, 64, [(0, 16)]),
        (17, 4, 64, [(0, 16), (16, 17)]),
        (20, 8, 64, [(0, 8), (8, 16), (16, 20)]),
    ],
)
def test_cuts_at_multiples(length, itemsize, chunk_bytes, edges):
    chunks = chunks_of(length, itemsize, chunk_bytes)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == edges
    assert [chunk.index for chunk in chunks] == list(range(len(edges)))


@given(st.integers(0, 5000), st.sampled_from([2, 4, 8]), st.integers(1, 40))
def test_chunks_cover_the_buffer_once(length, itemsize, elements):
    chunks = chunks_of(length, itemsize, elements * itemsize)
    assert [i for chunk in chunks for i in range(chunk.start, chunk.stop)] == list(range(length))
    assert all(chunk.length == elements for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("length", "itemsize", "chunk_bytes", "named"),
    [
        (-1, 4, 64, "-1 elements"),
        (1, 0, 64, "of 0 bytes"),
        (1, 4, 0, "chunk_bytes=0"),
        (1, 4, 63, "chunk_bytes=63"),
        ((MOST_CHUNKS + 1) * 16, 4, 64, "larger chunk_bytes"),
    ],
)
def test_refuses_what_cannot_be_cut(length, itemsize, chunk_bytes, named):
    with pytest.raises(LayoutError, match=named):
        chunks_of(length, itemsize, chunk_bytes)


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 9))
def test_loads_are_within_the_longest_chunk(lengths, servers):
    edges = np.cumsum([0, *lengths]).tolist()
    chunks = [Chunk(i, edges[i], edges[i + 1]) for i in range(len(lengths))]
    owner = assign(chunks, servers)
    assert owner == assign(list(chunks), servers)
    loads = [sum(c.length for c, o in zip(chunks, owner, strict=True) if o == s) for s in range(servers)]
    assert sum(loads) == sum(lengths)
    # What any greedy assignment in decreasing order keeps: no server exceeds another by more than one chunk.
    assert max(loads) - min(loads) <= max(lengths, default=0)


def test_longest_goes_first():
    chunks = [Chunk(0, 0, 2), Chunk(1, 2, 5), Chunk(2, 5, 7), Chunk(3, 7, 10)]
    assert assign(chunks, 2) == (0, 0, 1, 1)


def test_the_first_server_owns_a_chunk_if_any_does():
    assert assign(chunks_of(5, 4, 64), 3) == (0,)


def test_refuses_no_server():
    with pytest.raises(LayoutError, match="0 servers"):
        assign([], 0)


@pytest.fixture
def chunk_map():
    return ChunkMap(Layout.of("float32", {"w": (40,)}), 64, 2)


def test_map_shares_out_all_chunks(chunk_map):
    assert chunk_map.layout.length == 48
    assert sorted((*chunk_map.owned_by(0), *chunk_map.owned_by(1)), key=lambda c: c.index) == list(chunk_map.chunks)


@pytest.mark.parametrize(
    ("start", "stop", "indices"), [(0, 48, [0, 1, 2]), (16, 32, [1]), (16, 48, [1, 2]), (0, 0, []), (48, 48, [])]
)
def test_between(chunk_map, start, stop, indices):
    assert [chunk.index for chunk in chunk_map.between(start, stop)] == indices


@pytest.mark.parametrize(("start", "stop"), [(1, 16), (0, 17), (-16, 16), (32, 16), (0, 64)])
def test_between_refuses(chunk_map, start, stop):
    with pytest.raises(LayoutError, match=f"{start}:{stop}.*multiples of 16"):
        chunk_map.between(start, stop)


@pytest.mark.parametrize(
    "array",
    [np.zeros(47, np.float32), np.zeros(48, np.float64), np.zeros((48, 1), np.float32), np.zeros(96, np.float32)[::2]],
)
def test_check_array_refuses(chunk_map, array):
    with pytest.raises(LayoutError, match=r"contiguous \(48,\) of float32"):
        chunk_map.check_array(array)


def test_check_array_accepts(chunk_map):
    chunk_map.check_array(np.zeros(48, np.float32))
