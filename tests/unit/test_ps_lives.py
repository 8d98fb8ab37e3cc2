"""A server's jobs over several processes, each killed between two messages or within one: what counts, counts once."""

from __future__ import annotations

import itertools
import os
import sys

import msgspec
import numpy as np
import pytest
from synchronous_jobs import SynchronousJobs, admitted, errors, origin, told

from hybridps.memory import Layout
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning
from hybridps.ps.model import TableSpec
from hybridps.ps.rules import SGD, Foreign, Momentum, Sum
from hybridps.ps.server.kept import KeptMemory
from hybridps.ps.server.tables.images import KeptJobs

LENGTH = 48
SPEC = TableSpec(Layout.of("float32", {"w": (LENGTH,)}), SGD(rate=1.0), BulkSynchronous(), 4 * LENGTH, 0, 1)
"""One chunk."""


class DiedError(BaseException):
    """Stands for the end of the process."""


class Lives:
    """Jobs of one process after the other, with `groups` in job `job`."""

    def __init__(self, groups=2, spec=SPEC):
        self._descriptor = KeptMemory.create()
        self._groups = groups
        self._begin()
        for group in range(groups):
            self.jobs.enter("job", group, groups)
            self.jobs.register(origin(group), "w", spec)
        self.jobs.initialise(origin(0), "w", 0, None)
        self.jobs.keep(idle=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._descriptor)

    def _begin(self):
        self.jobs = SynchronousJobs(kept=KeptJobs(KeptMemory(self._descriptor)))

    def kill(self, present=None):
        """The next process begins, with the clients of these groups."""
        self._begin()
        groups = range(self._groups) if present is None else present
        self.jobs.restore(lambda job: self.jobs.budget, {("job", group) for group in groups})

    def bring(self, group, request, number, start=0, stop=LENGTH, targets=None):
        row = np.full(stop - start, number, np.float32) if np.isscalar(number) else number
        return self.jobs.contribute(origin(group, request), "w", 0, row, start, stop, targets)

    @property
    def centre(self):
        (_, table), *_ = self.jobs.tables()
        return table.chunk(0).memory.centre[:LENGTH]


def dying_at(count, files, work):
    """Call `work`, and stop it before line `count` of these files. Whether it was stopped."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if not frame.f_code.co_filename.endswith(files):
            return None
        lines += event == "line"
        if event == "line" and lines == count:
            raise DiedError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except DiedError:
        return True
    finally:
        sys.settrace(before)
    return False


def test_what_counted_in_part_counts_once():
    """Groups cut the chunk into different parts; the server is killed when the first of them have counted."""
    with Lives(3) as lives:
        assert lives.bring(0, 1, 1) == lives.bring(1, 1, 2) == []
        assert told(lives.bring(2, 1, 4, 0, 8)) == [(2, 1, -7)]
        lives.kill()
        assert lives.bring(1, 1, 2) == lives.bring(0, 1, 1) == []
        assert told(lives.bring(2, 1, 4, 0, 8)) == [(2, 1, -7)]
        assert told(lives.bring(2, 2, 4, 8, 32)) == [(2, 2, -7)]
        lives.kill()
        assert lives.bring(1, 1, 2) == lives.bring(0, 1, 1) == []
        answers = lives.bring(2, 3, 8, 32, LENGTH)
        assert sorted(told(answers)) == [(0, 1, -7), (1, 1, -7), (2, 3, -11)]
        for answer in answers:
            span = slice(32 * (answer.origin.group == 2), LENGTH)
            np.testing.assert_array_equal(answer.values, lives.centre[span])
        np.testing.assert_array_equal(lives.centre, np.repeat([-7, -11], [32, LENGTH - 32]))


def test_what_counted_in_part_in_memory_of_a_group_counts_once():
    with Lives() as lives:
        row = np.ones(LENGTH, np.float32)
        assert lives.bring(0, 1, row, targets=[row]) == []
        assert told(lives.bring(1, 1, 2, 0, 8)) == [(1, 1, -3)]
        np.testing.assert_array_equal(row, np.repeat([-3, 1], [8, LENGTH - 8]))
        lives.kill()
        assert lives.bring(0, 1, row, targets=[row]) == []
        assert told(lives.bring(1, 2, 2, 8, LENGTH)) == [(0, 1, None), (1, 2, -3)]
        np.testing.assert_array_equal(row, np.full(LENGTH, -3))
        np.testing.assert_array_equal(lives.centre, row)


def test_a_copy_that_comes_after_a_kill_and_later_ones_does_not_count():
    with Lives() as lives:
        for request in (1, 2):
            lives.bring(0, request, 1)
            assert len(told(lives.bring(1, request, 1))) == 2
        lives.kill()
        assert [group for group, _ in errors(lives.bring(0, 1, 1))] == [0]
        np.testing.assert_array_equal(lives.centre, np.full(LENGTH, -4))


@pytest.mark.parametrize("bound", [0, 2])
def test_a_stale_group_waits_after_a_kill_as_before(bound):
    with Lives(2, msgspec.structs.replace(SPEC, clock=BoundedStale(bound))) as lives:
        for request in range(1, 4):
            for group in range(2):
                lives.bring(group, request, 1)
        for request in range(4, 4 + bound):
            assert len(told(lives.bring(0, request, 1))) == 1
        held = 4 + bound
        assert lives.bring(0, held, 1) == []
        for _ in range(2):
            lives.kill()
            assert lives.bring(0, held, 1) == []  # it has counted, and waits
        assert sorted(told(lives.bring(1, 4, 1))) == [(0, held, -8 - bound), (1, 4, -8 - bound)]
        lives.kill()
        assert lives.bring(0, held + 1, 1) == []
        assert len(told(lives.bring(1, 5, 1))) == 2


def test_a_group_that_came_late_does_not_hold_up_others_after_a_kill():
    spec = msgspec.structs.replace(SPEC, clock=BoundedStale(1))
    with Lives(2, spec) as lives:
        lives.bring(0, 1, 1)
        lives.bring(1, 1, 1)
        lives.jobs.leave("job", 1, lost=True)
        for request in range(2, 6):
            assert len(told(lives.bring(0, request, 1))) == 1
        lives.jobs.enter("job", 1, 2)
        assert admitted(lives.jobs.register(origin(1, epoch=7), "w", spec))
        lives.jobs.keep(idle=True)
        lives.kill()
        assert len(told(lives.bring(0, 6, 1))) == 1
        assert lives.bring(0, 7, 1) == []


def test_early_sums_have_the_same_groups_after_a_kill():
    """The values of a group that was refused do not count in any process, and it is told so in each."""
    row = np.ones(LENGTH, np.float32)
    row[5] = np.nan
    with Lives(6, msgspec.structs.replace(SPEC, rule=Momentum(rate=1.0))) as lives:
        for _ in range(2):
            for group in range(5):
                lives.bring(group, 1, row if group == 2 else 1)
        answers = lives.bring(5, 1, 1)
        assert [group for group, _ in errors(answers)] == [2]
        assert len(told(answers)) == 5
        np.testing.assert_array_equal(lives.centre, np.full(LENGTH, -5))
        lives.kill()
        assert [group for group, _ in errors(lives.bring(2, 1, row))] == [2]
        assert told(lives.bring(1, 1, 1)) == [(1, 1, -5)]


FORGETS = ("tables/images.py", "tables/jobs.py", "tables/making.py", "kept/memory.py")


def test_a_table_that_is_dropped_stays_dropped_after_a_kill_at_any_line():
    """Each group is told that it is dropped, or may drop it again."""
    for line in itertools.count(1):
        with Lives() as lives:
            assert len(told(lives.jobs.drop(origin(0, 1), "w"))) == 1

            def drop(lives=lives):
                lives.jobs.keep(idle=True)
                lives.jobs.drop(origin(1, 1), "w")
                lives.jobs.keep(idle=True)

            died = dying_at(line, FORGETS, drop)
            lives.kill()
            for group in range(2):
                assert len(told(lives.jobs.drop(origin(group, 1), "w"))) == 1, line
            lives.jobs.keep(idle=True)
            lives.kill()
            assert lives.jobs.names("job") == {"w"}
            assert not [*lives.jobs.tables()]
            if not died:
                break
    assert line > 30


def test_what_is_left_of_a_table_that_could_not_be_made_is_not_used():
    """Another one of that name has another size."""
    with Lives() as lives:
        memory = KeptMemory(lives._descriptor)
        kept = KeptJobs(memory)
        kept.make_table("job", "other", SPEC)("array 0", 4 * LENGTH)[:] = 1
        larger = msgspec.structs.replace(SPEC, layout=Layout.of("float32", {"w": (2 * LENGTH,)}))
        for _ in range(2):
            assert not kept.make_table("job", "other", larger)("array 0", 8 * LENGTH).any()
            kept.keep(idle=True)
            assert len(memory.keys("values ")) == 2


def test_a_round_that_failed_is_not_gone_on_with(monkeypatch):
    with Lives(1, msgspec.structs.replace(SPEC, rule=Sum())) as lives:

        def fail(*_, **options):
            options["progress"].words[0] |= 1
            raise MemoryError("none is left")

        monkeypatch.setattr("hybridps.ps.server.chunks.memory.apply_", fail)
        with pytest.raises(MemoryError):
            lives.bring(0, 1, 1)
        monkeypatch.undo()
        lives.kill()
        assert not lives.jobs.table(origin(0), "w").chunk(0).memory.is_cut
        assert [group for group, _ in errors(lives.bring(0, 1, 1))] == [0]
        assert told(lives.bring(0, 2, 1)) == [(0, 2, 1)]


FRAMEWORK = """
def make(name, settings, weights, states):
    states[0][:] = 0.5

    def update(rule, gradient):
        states[0][:] += rule.update
        weights[:] -= states[0] * gradient

    return update
"""


def test_an_optimizer_of_a_framework_goes_on_with_its_states_and_counts(tmp_path, monkeypatch):
    (tmp_path / "counting.py").write_text(FRAMEWORK)
    metadata = tmp_path / "counting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hybridps.optimizers]\ncounting = counting:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    rule = Foreign(framework="counting", optimizer="any", states=1)
    with Lives(1, msgspec.structs.replace(SPEC, rule=rule, clock=FreeRunning())) as lives:
        told_before = 0.0
        for request in range(1, 5):
            told_before -= 0.5 + sum(range(request + 1))
            assert told(lives.bring(0, request, 1)) == [(0, request, told_before)]
            lives.kill()
            assert told(lives.bring(0, request, 1)) == [(0, request, told_before)]


def test_free_running_contributions_count_once():
    with Lives(2, msgspec.structs.replace(SPEC, clock=FreeRunning())) as lives:
        lives.bring(0, 1, 1)
        lives.kill()
        assert told(lives.bring(0, 1, 1)) == [(0, 1, -1)]
        assert told(lives.bring(1, 1, 1)) == [(1, 1, -2)]
