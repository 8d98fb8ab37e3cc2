"""The worker threads of a server: what they tell the loop, and when."""

from __future__ import annotations

import select
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from hybridps.ps.model import Task
from hybridps.ps.server.workers import TOGETHER, Workers

SECONDS = 20.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(2)
    yield made
    made.close()


def task(owner: int, run=lambda: None, sends: bool = False) -> Task:
    return Task(owner, run, lambda result: (), sends=sends, nbytes=None)


def is_told(workers: Workers, seconds: float = SECONDS) -> bool:
    return bool(select.select([workers.ready], [], [], seconds)[0])


def test_tasks_of_two_threads_that_were_handed_out_together_are_reported_together(workers: Workers) -> None:
    may_end, has_ended = threading.Event(), threading.Event()
    workers.hand([task(0, has_ended.set), task(1, lambda: may_end.wait(SECONDS))])
    assert has_ended.wait(SECONDS)
    assert not is_told(workers, 0.2)
    assert workers.collect(is_ready=False) == []
    may_end.set()
    assert is_told(workers)
    assert len(workers.collect(is_ready=True)) == 2
    assert workers.backlog == 0


def test_a_thread_without_work_keeps_no_values_of_the_last_task(workers: Workers) -> None:
    values, is_gone = np.zeros(1), threading.Event()
    weakref.finalize(values, is_gone.set)
    workers.hand([task(0, values.sum, sends=True)])
    del values
    assert is_told(workers)
    workers.collect(is_ready=True)
    assert is_gone.wait(SECONDS)


def test_many_tasks_are_reported_a_few_at_a_time(workers: Workers) -> None:
    may_end = threading.Event()
    workers.hand([*(task(0) for _ in range(TOGETHER)), task(1, lambda: may_end.wait(SECONDS))])
    assert is_told(workers)
    assert len(workers.collect(is_ready=True)) == TOGETHER
    may_end.set()
    assert is_told(workers)
    assert len(workers.collect(is_ready=True)) == 1


def test_an_answer_with_values_is_reported_at_once(workers: Workers) -> None:
    may_end = threading.Event()
    workers.hand([task(0, sends=True), task(1, lambda: may_end.wait(SECONDS))])
    assert is_told(workers)
    assert len(workers.collect(is_ready=True)) == 1
    may_end.set()


def test_all_that_was_handed_out_can_be_awaited(workers: Workers) -> None:
    workers.hand([task(number % 2, lambda: threading.Event().wait(0.05)) for number in range(3)])
    assert len(workers.collect(is_ready=False, wait=True)) == 3
    assert workers.backlog == 0
