"""When communication cannot be hidden, so that all gradients of a step are reduced at once."""

from __future__ import annotations

import os
import sys

import pytest

from hybridps.config import Settings
from hybridps.mpi_groups import open_session
from hybridps.step import JobContext

HERE, ELSEWHERE = "tcp://127.0.0.1:5555", "tcp://192.0.2.1:5555"
USUAL = 4 << 20


@pytest.mark.parametrize(
    ("cores", "servers", "is_full"),
    [(1, [], True), (1, [HERE], True), (1, [HERE, ELSEWHERE], False), (2, [], False), (2, [HERE], False)],
)
def test_a_host_is_full_if_it_has_the_whole_job_and_a_worker_for_each_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, servers: list[str], is_full: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    with open_session(lambda: Settings(quiet=True)) as session:
        session.announce(servers)
        assert session.is_full == is_full
        bucket = JobContext.of(session).bucket_bytes
        assert (bucket > sys.maxsize // 2) if is_full else (bucket == USUAL)


@pytest.mark.parametrize(("here", "is_full"), [(1, False), (2, False), (3, True), (4, True)])
def test_workers_of_other_groups_on_the_host_count(monkeypatch: pytest.MonkeyPatch, here: int, is_full: bool) -> None:
    """This group has one of three workers; the launcher says how many are on its host."""
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    given = Settings(quiet=True, group_sizes=(1, 1, 1), group_index=0, workers_on_host=here)
    with open_session(lambda: given) as session:
        session.announce([HERE])
        assert session.is_full == is_full


def test_a_size_that_is_given_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with open_session(lambda: Settings(quiet=True, bucket_bytes=10 << 20)) as session:
        session.announce([])
        assert session.is_full
        assert JobContext.of(session).bucket_bytes == 8 << 20  # whole chunks
