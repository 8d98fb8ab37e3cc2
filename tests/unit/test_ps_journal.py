"""A round that is cut off at any line of the code goes on in another process, as if it had not been cut off."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from hybridps.memory import Layout
from hybridps.ps.chunk_map import Span
from hybridps.ps.clocks import FreeRunning
from hybridps.ps.model import ChunkPlace, Contribution, Origin, TableSpec
from hybridps.ps.rules import SGD, Adam, Elastic, ElasticTogether, Mean, Momentum, Outer, Sum
from hybridps.ps.rules.kernel import BLOCK, KEPT_BLOCK
from hybridps.ps.rules.progress import WORD
from hybridps.ps.rules.rule import Rule
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.chunks.area import REFUSED
from hybridps.ps.server.chunks.journal import TableJournal
from hybridps.ps.server.chunks.memory import ChunkMemory
from hybridps.ps.server.chunks.round import EarlySum, Round

SIZE = KEPT_BLOCK + KEPT_BLOCK + 100
"""More than two blocks of the kernel."""


class Loaded(Rule, frozen=True, tag="loaded"):
    """Loads what updates it, which begins with states of its own, and counts its rounds."""

    states = 1
    clocks = (FreeRunning,)

    def load(self, weights, states):
        states[0][:] = 0.5

        def update(rule, step, total):
            states[0][:] += step
            weights[:] -= total * states[0]

        return update


RULES = [
    (Mean(), "float16", ["in place"]),
    (Loaded(), "float32", ["apart"]),
    (Sum(), "float32", ["apart"]),
    (Momentum(rate=0.25), "float32", ["in place"]),
    (Elastic(0.25), "float32", ["in place", "apart"]),
    (Sum(), "float16", []),
    (ElasticTogether(0.25), "float16", []),
    (Elastic(0.25), "float16", []),
    (Outer(rate=0.5, momentum=0.5), "float16", []),
    (SGD(rate=0.25, clip=3.0), "float64", []),
    (Adam(), "float32", []),
]
"""Rules, dtypes, and the places of the answers that are not left to the nightly tests."""
CUTS = [
    pytest.param(
        *(rule, dtype, place == "in place"),
        id=f"{type(rule).__name__}-{dtype}-{place}",
        marks=() if place in usual else pytest.mark.nightly,
    )
    for rule, dtype, usual in RULES
    for place in ("in place", "apart")
]


class DiedError(BaseException):
    """Stands for the end of the process."""


class Life:
    """One process: a chunk in memory that outlives it."""

    def __init__(self, arrays, rule, dtype):
        layout = Layout.of(dtype, {"w": (SIZE,)})
        self.spec = TableSpec(layout, rule, rule.clocks[0](), layout.nbytes, 0, 1)
        self.journal = TableJournal(self._make(arrays), self.spec, 2, 1, Budget())
        self.journal.restore(lambda place: 0)
        centre, *state = [array[:SIZE] for array in self.journal.arrays]
        self.memory = ChunkMemory(
            ChunkPlace("job", "w", 0), 0, rule, centre, state, not rule.transparent, (SIZE,), centre.nbytes
        )
        self.memory.journal = self.journal.of_chunk(0, 0)
        self.memory.restore()

    @staticmethod
    def _make(arrays):
        def make(name, nbytes):
            return arrays.setdefault(name, np.zeros(nbytes, np.uint8))

        return make

    def begin(self):
        self.memory.reset_(np.linspace(-1, 1, SIZE).astype(self.spec.layout.dtype))

    def compute(self, rows, targets, request, groups=(0, 1)):
        """One round of the whole chunk. If it counts already, it is only answered again, as a server does.

        Elastic has one contribution in each, whose answer was written before it counted.
        """
        together = [groups] if not self.spec.rule.separate else [(group,) for group in groups]
        counted = {
            group
            for group, marks in self.memory.journal.counted().items()
            if any(mark.request == request for mark in marks)
        }
        for part in together:
            contributions = [
                Contribution(Origin("job", g, 77 + g, request), Span(0, 0, SIZE), [rows[g]], [targets[g]]) for g in part
            ]
            if counted.issuperset(part):
                self.memory.give_(0, SIZE, [] if self.spec.rule.separate else [targets[group] for group in part])
                continue
            outlets = {group: [targets[group]] for group in part}
            self.memory.apply_(round_of(contributions, outlets))
        return counted


def round_of(contributions, outlets=None, early=None):
    """A round of the whole chunk."""
    early, late = early or EarlySum(), [each for each in contributions if each.rows]
    numbers = [0] * len(contributions)
    return Round(0, SIZE, early, late, outlets or {}, lambda result: (), counted=contributions, values=numbers)


def rows_of(dtype, step):
    return [np.linspace(-2 - step, 3 + group, SIZE).astype(dtype) for group in range(2)]


def dying_at(count, work):
    """Call `work`, and stop it before line `count` of the files that compute a round. Whether it was stopped."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        name = frame.f_code.co_filename
        if not name.endswith(("rules/rule.py", "progress.py", "journal.py", "chunks/memory.py", "test_ps_journal.py")):
            return None
        if event == "line":
            lines += 1
            if lines == count:
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


def state_of(life):
    return [*(array.copy() for array in life.memory.arrays), np.array([life.memory.steps])]


def check_same(here, there):
    for each, expected in zip(here, there, strict=True):
        np.testing.assert_array_equal(each, expected)


def name_of(value):
    return value if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(("rule", "dtype", "aliased"), CUTS)
def test_a_round_that_is_cut_off_anywhere_goes_on(rule, dtype, aliased):
    """The second of three rounds is cut off before each of its lines in turn, and sometimes once more."""

    def prepare(arrays):
        life = Life(arrays, rule, dtype)
        life.begin()
        run(life, 0, 10)
        rows = rows_of(dtype, 1)
        return life, rows, rows if aliased else [np.zeros_like(row) for row in rows]

    def run(life, step, request):
        rows = rows_of(dtype, step)
        targets = rows if aliased else [np.zeros_like(row) for row in rows]
        life.compute(rows, targets, request)
        return targets

    life, rows, answers = prepare({})
    life.compute(rows, answers, 20)
    expected = [*state_of(life), *answers]
    last = [*run(life, 2, 30), *state_of(life)]
    cuts = 0
    for line in itertools.count(1):
        arrays = {}
        life, rows, targets = prepare(arrays)
        deaths = [line] if line % 5 else [line, 3 * line // 4]

        def go_on(arrays=arrays, rows=rows, targets=targets):
            Life(arrays, rule, dtype).compute(rows, targets, 20)

        died = [dying_at(death, go_on) for death in deaths]
        life = Life(arrays, rule, dtype)
        cuts += bool(life.memory.journal._cuts)
        life.compute(rows, targets, 20)
        check_same([*state_of(life), *targets], expected)
        assert not any(area.words[WORD] for area in life.journal._areas)
        check_same([*run(life, 2, 30), *state_of(life)], last)
        if not died[0]:
            break
    assert line > 30
    assert cuts > 5


@pytest.mark.parametrize("first", [0, 1])
def test_rounds_of_two_groups_that_two_kills_have_cut_both_go_on(first):
    """Whichever group is `first` to send again what was under way."""
    rule, rows = Elastic(0.25), rows_of("float32", 1)

    def answers():
        return [np.zeros_like(row) for row in rows]

    arrays, targets = {}, answers()
    life = Life(arrays, rule, "float32")
    life.begin()
    for group in (0, 1):
        for line in itertools.count(1):
            copies = {name: array.copy() for name, array in arrays.items()}
            life = Life(copies, rule, "float32")
            assert dying_at(line, lambda life=life, group=group: life.compute(rows, targets, 20, (group,)))
            if len(Life(copies, rule, "float32").memory.journal._cuts) > group:  # before its first block
                arrays = copies
                break
    life, other = Life(arrays, rule, "float32"), Life({}, rule, "float32")
    other.begin()
    expected = answers()
    for group in (first, 1 - first):
        life.compute(rows, targets, 20, (group,))
        other.compute(rows, expected, 20, (group,))
    check_same([*targets, *state_of(life)], [*expected, *state_of(other)])


def test_who_was_refused_is_known_after_a_cut():
    """NaN of one group in the second block: its values count before that block, and nowhere else."""
    rule, dtype = Momentum(rate=0.25), "float32"

    def prepare(arrays):
        life = Life(arrays, rule, dtype)
        life.begin()
        rows = rows_of(dtype, 0)
        rows[1][KEPT_BLOCK + 904] = np.nan
        return life, rows, [np.zeros_like(row) for row in rows]

    life, rows, answers = prepare({})
    life.compute(rows, answers, 10)
    expected = [*state_of(life), answers[0]]
    for line in itertools.count(1):
        arrays = {}
        life, rows, answers = prepare(arrays)

        def die(life=life, rows=rows, answers=answers):
            life.compute(rows, answers, 10)

        died = dying_at(line, die)
        life = Life(arrays, rule, dtype)
        life.compute(rows, answers, 10)
        check_same([*state_of(life), answers[0]], expected)
        counted = life.memory.journal.counted()
        assert [counted[group][0].row for group in range(2)] == [-1, REFUSED]
        if not died:
            break
    assert line > 30


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_values_count_up_to_the_kept_block_with_the_first_that_is_no_number(dtype):
    life = Life({}, Outer(rate=1.0, momentum=0.0), dtype)  # the new centre is the mean
    life.begin()
    rows = [np.full(SIZE, group, dtype) for group in (1, 2)]
    rows[0][BLOCK + 904] = rows[1][KEPT_BLOCK + BLOCK - 1] = np.nan  # in the first kept block, and in the second
    before = state_of(life)[0].copy()
    life.compute(rows, [np.zeros(SIZE, dtype) for _ in rows], 10)
    centre = state_of(life)[0]
    np.testing.assert_allclose(centre[:KEPT_BLOCK], 2, atol=0.01)
    np.testing.assert_array_equal(centre[KEPT_BLOCK:], before[KEPT_BLOCK:])


def test_a_kill_while_a_rule_is_loaded_changes_nothing():
    """What it loads writes its first states where the kept ones are."""
    arrays = {}
    life = Life(arrays, Loaded(), "float32")
    life.begin()
    rows = rows_of("float32", 0)
    life.compute(rows, rows, 10)
    expected = state_of(life)
    for line in itertools.count(1):
        died = dying_at(line, lambda: Life(arrays, Loaded(), "float32"))
        check_same(state_of(Life(arrays, Loaded(), "float32")), expected)
        if not died:
            break
    assert line > 30
    assert not any(area.words[WORD] for area in life.journal._areas)


def test_a_loaded_rule_does_nothing_with_values_that_were_refused():
    """Whether it looks at them in this process or not."""

    def prepare(arrays):
        life = Life(arrays, Loaded(), "float32")
        life.begin()
        return life, [np.full(SIZE, np.nan, np.float32) for _ in range(2)]

    expected = state_of(prepare({})[0])[:-1]
    for line in itertools.count(1):
        arrays = {}
        life, rows = prepare(arrays)
        died = dying_at(line, lambda life=life, rows=rows: life.compute(rows, rows, 10))
        life = Life(arrays, Loaded(), "float32")
        life.compute(rows, rows, 10)
        check_same(state_of(life)[:-1], expected)
        assert [life.memory.journal.counted()[group][0].row for group in range(2)] == [REFUSED, REFUSED]
        if not died:
            break
    assert line > 30


def test_a_round_with_an_early_sum_goes_on_with_the_same_groups():
    """The next process gets the values together: the group that was refused counts in the whole round, until its NaN,
    or in no block of it."""
    rule, dtype = Momentum(rate=0.25), "float32"

    def contributions(rows):
        origins = [Origin("job", group, 77 + group, 10) for group in range(2)]
        return [Contribution(of, Span(0, 0, SIZE), [row]) for of, row in zip(origins, rows, strict=True)]

    def prepare(arrays):
        life = Life(arrays, rule, dtype)
        life.begin()
        rows = rows_of(dtype, 0)
        rows[1][KEPT_BLOCK + 904] = np.nan
        return life, rows

    def sum_early(life, rows):
        early = EarlySum()
        life.memory.add_(round_of(contributions(rows), early=early))
        refused = life.memory.apply_(round_of([replace(each, rows=()) for each in contributions(rows)], early=early))
        assert [*refused] == [1]

    def compute(life, rows):
        assert [*life.memory.apply_(round_of(contributions(rows)))] == [1]

    possible = []
    for work in (sum_early, compute):
        life, rows = prepare({})
        work(life, rows)
        possible.append(state_of(life))
    for line in itertools.count(1):
        arrays = {}
        life, rows = prepare(arrays)
        died = dying_at(line, lambda life=life, rows=rows: sum_early(life, rows))
        life = Life(arrays, rule, dtype)
        if not life.memory.journal.counted():
            compute(life, rows)
        assert any(all(map(np.array_equal, state_of(life), each)) for each in possible), line
        marks = life.memory.journal.counted()
        assert [marks[group][0].row for group in range(2)] == [-1, REFUSED]
        if not died:
            break
    assert line > 30


@pytest.mark.parametrize("rule", [Momentum(rate=0.25), Elastic(0.25)], ids=name_of)
def test_a_round_of_a_kernel_goes_on_at_each_block(rule):
    """What the compiled loop has noted is enough to go on: the noted place is moved by hand.

    The answer of Elastic is written before the block is done, so it may have replaced the block's values.
    """
    dtype, groups = "float32", (0,) if rule.separate else (0, 1)
    whole = Life({}, rule, dtype)
    whole.begin()
    rows = rows_of(dtype, 0)
    answers = [np.zeros_like(row) for row in rows]
    whole.compute(rows, answers, 10, groups)
    for done in (0, KEPT_BLOCK, 2 * KEPT_BLOCK):
        arrays = {}
        life = Life(arrays, rule, dtype)
        life.begin()
        rows = rows_of(dtype, 0)
        lost = done + KEPT_BLOCK if rule.separate else done
        rows = [np.concatenate([np.full(SIZE, np.nan, dtype)[:lost], row[lost:]]) for row in rows]
        life.journal._areas[0].words[WORD] = 0
        before = [array.copy() for array in life.memory.arrays]
        for array, after in zip(life.memory.arrays, whole.memory.arrays, strict=True):
            array[:done] = after[:done]
            array[done : done + KEPT_BLOCK] = 777  # half changed
        fake_begin(life, done, before, groups)
        life = Life(arrays, rule, dtype)
        targets = [np.zeros_like(row) for row in rows]
        if rule.separate:
            targets[0][:done] = answers[0][:done]
        life.compute(rows, targets, 10, groups)
        check_same([*state_of(life), *targets], [*state_of(whole), *answers])


def fake_begin(life, done, before, groups):
    """Note what the loop notes while it changes the block that begins with `done`."""
    journal = life.memory.journal
    contributions = [Contribution(Origin("job", g, 77 + g, 10), Span(0, 0, SIZE), [], None) for g in groups]
    journal.begin(round_of(contributions), 1, len(groups))
    length = min(KEPT_BLOCK, SIZE - done)
    total = sum(rows_of("float32", 0)[group] for group in groups)
    journal.progress(done).begin([array[done:] for array in (total, *before)], length)
