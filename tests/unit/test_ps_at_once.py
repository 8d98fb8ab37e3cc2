"""The chunks of sums that are exchanged all at once."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.memory import Layout
from hybridps.ps.chunk_map import AT_ONCE_BYTES, equal_chunk_bytes
from hybridps.ps.client import Client
from hybridps.ps.rules import AnyRule, Elastic, Sum
from hybridps.ps.server import Server

pytestmark = pytest.mark.timeout(60)

USUAL = 4 << 20


@given(st.integers(0, 1 << 31), st.integers(1, 5), st.integers(1, 9))
def test_all_cores_of_all_servers_have_as_many_equal_chunks(nbytes: int, servers: int, cores: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: cores)
        size = equal_chunk_bytes(nbytes, servers, USUAL)
    assert USUAL <= size <= AT_ONCE_BYTES
    assert size % 64 == 0
    count = -(-nbytes // size)
    if size > USUAL:
        assert count % (servers * cores) == 0
        assert count * size - nbytes <= 64 * count


@pytest.mark.parametrize(
    ("rule", "at_once", "chunk_bytes", "initial", "sizes"),
    [
        (Sum(), True, None, False, [5, 5]),
        (Sum(), True, None, True, [4, 4, 2]),
        (Sum(), False, None, False, [4, 4, 2]),
        (Sum(), True, 8 << 20, False, [8, 2]),
        (Elastic(0.5), True, None, True, [4, 4, 2]),
    ],
)
def test_only_sums_without_initial_values_or_a_given_size_have_such_chunks(
    monkeypatch: pytest.MonkeyPatch,
    rule: AnyRule,
    at_once: bool,
    chunk_bytes: int | None,
    initial: bool,
    sizes: list[int],
) -> None:
    """Megabytes of the chunks of a table of ten, on two cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    layout = Layout.of("float32", {"w": (10 << 18,)})
    ones, settings = np.ones(layout.length, np.float32), Settings(chunk_bytes=chunk_bytes)
    with (
        in_thread(Server("tcp://127.0.0.1:*")) as server,
        Client([server.address], job="job", group=0, groups=1, settings=settings, at_once=at_once) as client,
    ):
        client.register("w", layout, ones if initial else None, rule)
        chunks = client._tables["w"].chunk_map
        assert [chunks.whole(chunk).length >> 18 for chunk in range(chunks.count)] == sizes
        answer = np.zeros(layout.length, np.float32)
        client.exchange("w", 3 * ones, answer, 0, layout.length).wait()
        assert (answer == (3 if rule == Sum() else 1)).all()
