"""The published trace of GoogleNet on 8 nodes, where it is at hand, against what its authors' model gives for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridps.oracle.ssgd.trace import fit_link, read_trace, replay

TRACE = Path(__file__).parents[2].parent / "shared" / "data" / "ssgd" / "googlenet-k80-8nodes-10gbe.csv"
pytestmark = pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE.name} is not here")


def test_the_link_is_the_published_one() -> None:
    link = fit_link(read_trace(TRACE))
    assert 1e6 * link.start_seconds == pytest.approx(1686.0, abs=0.05)
    assert 1e6 * link.seconds_per_unit == pytest.approx(3.79016e-3, abs=5e-9)


def test_the_iteration_is_the_published_one() -> None:
    found = replay(read_trace(TRACE))
    milliseconds = [found.naive_ms, found.wfbp_ms, found.exposed_ms, found.single_message_ms, found.merged_ms]
    assert milliseconds == pytest.approx([516.072, 311.199, 105.865, 409.857, 216.125], abs=0.0006)
    assert found.merged_groups == 6
