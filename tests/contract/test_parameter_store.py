"""What every parameter store does: clients of 1, 2 and 3 servers inside a process, over TCP, IPC and shared memory, and
clients of servers that have parents.

MXNet's own servers do what is asked of `every_tier` and `flat`.
"""

from __future__ import annotations

import importlib.util
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import zmq
from hierarchy import Hierarchy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_thread import in_thread
from ps_lite_groups import MXNetTiers, RemoteStore

from hybridps.codecs import Quantised
from hybridps.config import Settings
from hybridps.errors import DeadlineError, HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps.client import Client
from hybridps.ps.clocks import BulkSynchronous, FreeRunning
from hybridps.ps.model import Joining
from hybridps.ps.rules import SGD, Adam, Elastic, ElasticTogether, Mean, Momentum, Nesterov, Outer, Sum, apply_
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.server import Server
from hybridps.ps.server.kept import KeptMemory
from hybridps.shared_memory import shared_memory

pytestmark = pytest.mark.timeout(30)

FLAT = ("inproc-2", "tcp-1", "tcp-3", "ipc-2", "shm-1", "shm-3")
KINDS = (*FLAT, "rack-2")
LIKE_OTHERS = tuple(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("inproc-1", "tcp-2", "ipc-1"))
CHUNK_BYTES = 1024
SETTINGS = Settings(chunk_bytes=CHUNK_BYTES, connect_seconds=5.0, deadline_seconds=20.0, lost_seconds=5.0)
KEPT = ("inproc-2", "tcp-3", "ipc-2", "shm-1")
"""Whose servers keep all in memory that outlives them."""
DTYPES = ("float16", "float32", "float64")


class InPlace(Client):
    """A client whose exchanges are in shared memory; arrays of the tests are copied in and out."""

    def exchange(self, table, values, answer, start, stop, rules=()):
        there = [shared_memory(array.nbytes).view(array.dtype) for array in (values, answer)]
        for mine, array in zip(there, (values, answer), strict=True):
            np.copyto(mine, array)
        return InPlacePending(
            super().exchange(table, *there, start, stop, rules), there[1][start:stop], answer[start:stop]
        )


class InPlacePending:
    def __init__(self, pending, source, target):
        self.pending, self.source, self.target = pending, source, target

    def wait(self):
        self.pending.wait()
        np.copyto(self.target, self.source)


@contextmanager
def kept_memory():
    descriptor = KeptMemory.create()
    yield KeptMemory(descriptor)
    os.close(descriptor)


class Tier:
    """Servers of one kind, each with several threads, and the stores opened there; all are closed in the end."""

    def __init__(self, kind, folder):
        self._stack = ExitStack()
        self._context = zmq.Context() if kind.startswith("inproc") else None
        self._client = InPlace if kind.startswith("shm") else Client
        self.has_parent = "rack" in kind
        if self.has_parent:
            rack = Hierarchy(racks=1, servers=int(kind[-1]), parents=int(kind[-1]), settings=SETTINGS)
            self._stack.callback(rack.close)
            self.addresses = [server.address for server in rack.servers]
        else:
            transport, count = kind.split("-")
            keeps = kind in KEPT
            self.addresses = [self._serve(transport, folder, number, keeps) for number in range(int(count))]

    def _serve(self, transport, folder, number, keeps):
        addresses = {"ipc": f"ipc://{folder}/{number}", "inproc": f"inproc://{number}"}
        address = addresses.get(transport, "tcp://127.0.0.1:*")
        kept = self._stack.enter_context(kept_memory()) if keeps else None
        server = Server(address, threads=number + 1, context=self._context, kept=kept)
        return self._stack.enter_context(in_thread(server)).address

    def open(self, group=0, groups=1, job="job", **changes):
        changed = msgspec.structs.replace(SETTINGS, **changes)
        options = {"job": job, "group": group, "groups": groups, "settings": changed, "context": self._context}
        return self._stack.enter_context(self._client(self.addresses, **options))

    def close(self):
        self._stack.close()
        if self._context is not None:
            self._context.term()


@pytest.fixture(params=[*KINDS, *LIKE_OTHERS])
def tier(request, tmp_path):
    tier = Tier(request.param, tmp_path)
    yield tier
    tier.close()


class MXNetTier:
    """As `Tier`, at MXNet's servers; of all dtypes they take float32."""

    has_parent = False

    def __init__(self, tiers):
        self._tiers = tiers
        self._stack = ExitStack()

    def open(self, group=0, groups=1, job="job"):
        return self._stack.enter_context(RemoteStore(self._tiers, group, groups, job))

    def close(self):
        self._stack.close()


@pytest.fixture(scope="module")
def mxnet_tiers():
    kinds = [(2, BulkSynchronous), (3, FreeRunning)]
    tiers = MXNetTiers(SETTINGS, servers=2, kinds=kinds)
    yield tiers
    tiers.close()


MXNET = pytest.param("mxnet", marks=[pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(120)])


def tier_of(request, tmp_path):
    if request.param != "mxnet":
        return Tier(request.param, tmp_path)
    if importlib.util.find_spec("mxnet") is None:
        pytest.skip("MXNet is not installed")
    dtype, groups = (request.node.callspec.params.get(name) for name in ("dtype", "groups"))
    if dtype not in (None, "float32") or groups not in (None, 2):
        pytest.skip("MXNet's servers take float32, and each number of groups has a tier of its own")
    return MXNetTier(request.getfixturevalue("mxnet_tiers"))


@pytest.fixture(params=[*KINDS, *LIKE_OTHERS, MXNET])
def every_tier(request, tmp_path):
    tier = tier_of(request, tmp_path)
    yield tier
    tier.close()


@pytest.fixture(params=[*FLAT, *LIKE_OTHERS])
def flat_of_ours(request, tmp_path):
    """Servers of hybridps without parents."""
    tier = Tier(request.param, tmp_path)
    yield tier
    tier.close()


@pytest.fixture(params=[*FLAT, *LIKE_OTHERS, MXNET])
def flat(request, tmp_path):
    """Without parents: elastic averaging has one centre."""
    tier = tier_of(request, tmp_path)
    yield tier
    tier.close()


def layout_of(size=700, dtype="float32"):
    return Layout.of(dtype, {"w": (size,)})


def numbers(layout, seed):
    """Small integers: their sums are exact in every dtype."""
    return np.random.default_rng(seed).integers(-50, 50, layout.length).astype(layout.dtype)


def together(*calls):
    """Run the groups' parts at the same time, and return what they return."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def joined(tier, groups, layout, rule, initial=None):
    stores = [tier.open(group, groups) for group in range(groups)]
    together(*(lambda s=store: s.register("w", layout, initial, rule) for store in stores))
    return stores


def swap(store, values):
    """One exchange of the whole buffer, in place."""
    store.exchange("w", values, values, 0, len(values)).wait()
    return values


def joining(tier):
    """What the group finds that initialises a table: with parents their centre counts."""
    return Joining.LATE if tier.has_parent else Joining.NEW


def centre(store, layout):
    out = np.full(layout.length, np.nan, layout.dtype)
    store.pull("w", out)
    return out


@pytest.mark.parametrize("size", [0, 1, 256, 512, 700])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_group_initialises(tier, size, dtype):
    layout = layout_of(size, dtype)
    first, second = tier.open(0, 2), tier.open(1, 2)
    assert first.register("w", layout, numbers(layout, 0), Sum()) is joining(tier)
    assert second.register("w", layout, numbers(layout, 1), Sum()) is Joining.LATE
    for store in (first, second):
        np.testing.assert_array_equal(centre(store, layout), numbers(layout, 0))


def test_no_initial_values_are_zeros(every_tier):
    store, _ = joined(every_tier, 2, layout_of(), Sum())
    assert not centre(store, layout_of()).any()


def test_of_groups_that_register_together_the_first_initialises(every_tier):
    layout = layout_of(3000)
    stores = [every_tier.open(group, 3) for group in range(3)]
    initials = [np.full(layout.length, group, np.float32) for group in range(3)]
    joinings = together(
        *(
            lambda s=store, i=initial: s.register("w", layout, i, Elastic(0.5))
            for store, initial in zip(stores, initials, strict=True)
        )
    )
    assert joinings == [joining(every_tier), Joining.LATE, Joining.LATE]
    for store in stores:
        np.testing.assert_array_equal(centre(store, layout), initials[0])


def test_the_first_group_initialises_though_it_comes_last(tier):
    layout = layout_of(3000)
    stores = [tier.open(group, 2) for group in range(2)]

    def last():
        time.sleep(0.1)
        return stores[0].register("w", layout, numbers(layout, 0), Sum())

    assert together(last, lambda: stores[1].register("w", layout, numbers(layout, 1), Sum())) == [
        joining(tier),
        Joining.LATE,
    ]
    for store in stores:
        np.testing.assert_array_equal(centre(store, layout), numbers(layout, 0))


def test_another_layout_is_refused_with_the_difference(tier):
    first, second = tier.open(0, 2), tier.open(1, 2)
    first.register("w", layout_of(700), None, Sum())
    with pytest.raises(LayoutError, match=r"key 'w' has the shape \(701,\) instead of \(700,\)"):
        second.register("w", layout_of(701), None, Sum())
    with pytest.raises(LayoutError, match="dtype float64 instead of float32"):
        second.register("w", layout_of(700, "float64"), None, Sum())


def test_another_rule_is_refused_with_both(tier):
    first, second = tier.open(0, 2), tier.open(1, 2)
    first.register("w", layout_of(), None, Elastic(0.5))
    for rule in (Sum(), Elastic(0.25)):
        with pytest.raises(ServerError) as refused:
            second.register("w", layout_of(), None, rule)
        assert "alpha=0.5" in str(refused.value)
        assert str(rule) in str(refused.value)


def test_another_number_of_groups_is_refused_with_both(tier):
    tier.open(0, 2)
    with pytest.raises(ServerError, match="groups=2.*3"):
        tier.open(1, 3)


def test_another_chunk_size_is_refused_with_both(tier):
    first, second = tier.open(0, 2), tier.open(1, 2, chunk_bytes=2048)
    first.register("w", layout_of(), None, Sum())
    with pytest.raises(ServerError, match="chunk_bytes=1024.*2048"):
        second.register("w", layout_of(), None, Sum())


def test_unusable_arguments_are_refused(tier):
    layout = layout_of()
    store = tier.open()
    with pytest.raises(LayoutError, match="float64"):
        store.register("w", layout, np.zeros(layout.length), Sum())
    with pytest.raises(ServerError, match="'w' is not registered"):
        swap(store, numbers(layout, 0))
    store.register("w", layout, None, Sum())
    with pytest.raises(ServerError, match="'w' is registered already"):
        store.register("w", layout, None, Sum())
    with pytest.raises(LayoutError, match="contiguous"):
        store.pull("w", np.zeros(2 * layout.length, np.float32)[::2])
    for start, stop in ((-1, 5), (5, 4), (0, layout.length + 1)):
        with pytest.raises(LayoutError, match="not within"):
            store.exchange("w", numbers(layout, 0), numbers(layout, 0), start, stop)
    with pytest.raises(ServerError, match="rule"):
        store.register("v", layout, None, object())


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_equals_numpy(every_tier, groups, dtype):
    layout = layout_of(1100, dtype)
    stores = joined(every_tier, groups, layout, Sum())
    for step in range(3):
        values = [numbers(layout, 10 * step + group) for group in range(groups)]
        expected = np.sum(values, axis=0)
        for answer in together(*(lambda s=s, v=v: swap(s, v.copy()) for s, v in zip(stores, values, strict=True))):
            np.testing.assert_array_equal(answer, expected)
        np.testing.assert_array_equal(centre(stores[-1], layout), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_tell_whose_values_are_no_numbers_and_have_them(tier, dtype):
    layout = layout_of(1100, dtype)
    stores = joined(tier, 2, layout, Sum())
    for bad in (True, False):
        brought = [numbers(layout, group) for group in range(2)]
        if bad:
            brought[1][[700, 1000]] = np.nan, np.inf
        answers = [array.copy() for array in brought]
        pending = [s.exchange("w", v, v, 0, layout.length) for s, v in zip(stores, answers, strict=True)]
        found = []
        for operation in pending:
            operation.wait()
            found.append(getattr(operation, "pending", operation).not_finite)
        assert found == [{}, {0: 700} if bad else {}]
        assert all(store.finds_not_finite for store in stores)
        for answer in answers:
            np.testing.assert_array_equal(answer, sum(brought))


SYNCHRONOUS = [Mean(), Momentum(rate=0.1), Nesterov(rate=0.1), Adam(weight_decay=0.1), ElasticTogether(0.3), Outer()]


def test_a_group_whose_values_were_refused_goes_on_at_once(tier):
    """One chunk is refused while others are still computed: the exchange ends when all of them are over."""
    layout = layout_of(20_000)
    good, bad = np.ones(layout.length, np.float32), np.ones(layout.length, np.float32)
    bad[0] = np.nan
    stores = joined(tier, 2, layout, Momentum(rate=0.1), np.zeros(layout.length, np.float32))

    def steps(group):
        for _ in range(20):
            if group == 0:
                with pytest.raises(NotFiniteError, match="element 0 is nan"):
                    swap(stores[group], bad.copy())
            else:
                swap(stores[group], good.copy())
            last = swap(stores[group], good.copy())
        return last

    first, second = together(*(lambda g=g: steps(g) for g in range(2)))
    np.testing.assert_array_equal(first, second)


def test_an_elastic_exchange_moves_everything_or_nothing(flat_of_ours):
    """NaN in the last chunk: the centre has not moved in the first one either."""
    layout = layout_of(20_000)
    (store,) = joined(flat_of_ours, 1, layout, Elastic(0.5), np.ones(layout.length, np.float32))
    bad = np.full(layout.length, 3, np.float32)
    bad[-300] = np.inf
    with pytest.raises(NotFiniteError, match=f"table 'w' were refused: element {layout.length - 300} is inf"):
        swap(store, bad)
    assert (centre(store, layout) == 1).all()
    swap(store, np.full(layout.length, 3, np.float32))
    assert (centre(store, layout) == 2).all()


@pytest.mark.parametrize("rule", SYNCHRONOUS, ids=lambda rule: type(rule).__name__)
def test_rules_have_the_bits_of_their_kernels(every_tier, rule):
    layout = layout_of(700)
    expected = numbers(layout, 9)
    stores = joined(every_tier, 2, layout, rule, expected.copy())
    state = [np.zeros_like(expected) for _ in range(rule.states)]
    for step in (1, 2, 3):
        values, answer = [numbers(layout, 10 * step + group) for group in range(2)], np.empty_like(expected)
        apply_(rule, values, [answer], expected, state, step=step, contributions=2)
        for found in together(*(lambda s=s, v=v: swap(s, v.copy()) for s, v in zip(stores, values, strict=True))):
            np.testing.assert_array_equal(found, answer)
        np.testing.assert_array_equal(centre(stores[0], layout), expected)


@pytest.mark.parametrize("size", [0, 1, 256, 257])
def test_sum_of_short_buffers(every_tier, size):
    layout = layout_of(size)
    stores = joined(every_tier, 2, layout, Sum())
    answers = together(*(lambda s=s, g=g: swap(s, numbers(layout, g)) for g, s in enumerate(stores)))
    for answer in answers:
        np.testing.assert_array_equal(answer, numbers(layout, 0) + numbers(layout, 1))


def test_several_buckets_are_under_way(every_tier):
    layout = layout_of(2000)
    edges = [0, 512, 768, 1792, layout.length]
    stores = joined(every_tier, 2, layout, Sum())

    def step(group, order):
        values, answer = numbers(layout, group), np.full(layout.length, np.nan, np.float32)
        ranges = [(edges[i], edges[i + 1]) for i in order]
        pending = [stores[group].exchange("w", values, answer, *edge) for edge in ranges]
        for operation in pending:
            operation.wait()
        np.testing.assert_array_equal(values, numbers(layout, group))
        return answer

    for answer in together(lambda: step(0, (0, 1, 2, 3)), lambda: step(1, (3, 1, 2, 0))):
        np.testing.assert_array_equal(answer, numbers(layout, 0) + numbers(layout, 1))


def test_an_exchange_touches_its_elements_only(tier):
    layout = layout_of(1000)
    (store,) = joined(tier, 1, layout, Sum())
    answer = np.full(layout.length, -1, np.float32)
    store.exchange("w", np.ones(layout.length, np.float32), answer, 256, 512).wait()
    assert (answer[256:512] == 1).all()
    assert (answer[:256] == -1).all()
    assert (answer[512:] == -1).all()
    out = centre(store, layout)
    assert out.sum() == 256


def test_an_exchange_may_bring_other_numbers_of_the_rule(flat_of_ours):
    """Each span of elements has its own, wherever groups and chunks are cut."""
    layout = layout_of(1000)
    stores = joined(flat_of_ours, 2, layout, SGD(rate=0.0))
    rules = ((100, SGD(rate=1.0)), (300, SGD(rate=2.0)), (301, SGD(rate=3.0)), (layout.length, SGD(rate=4.0)))
    rates = np.repeat([1.0, 2.0, 3.0, 4.0], np.diff([0, 100, 300, 301, layout.length])).astype("float32")
    ones = [np.ones(layout.length, np.float32) for _ in stores]
    whole = stores[0].exchange("w", ones[0], ones[0], 0, layout.length, rules)
    edges = (0, 150, 700, layout.length)
    for start, stop in zip(edges, edges[1:], strict=False):
        mine = tuple((min(end, stop), rule) for end, rule in rules if end > start)
        mine = mine[: next(number for number, (end, _) in enumerate(mine, 1) if end >= stop)]
        stores[1].exchange("w", ones[1], ones[1], start, stop, mine).wait()
    whole.wait()
    for answer in ones:
        np.testing.assert_array_equal(answer, -2 * rates)
    np.testing.assert_array_equal(centre(stores[0], layout), -2 * rates)


def test_groups_that_bring_different_rules_to_a_round_are_refused(flat_of_ours):
    layout = layout_of(100)
    stores = joined(flat_of_ours, 2, layout, SGD(rate=0.0))
    ones = np.ones(layout.length, np.float32)
    pending = [
        store.exchange("w", ones, ones.copy(), 0, layout.length, ((layout.length, SGD(rate=rate)),))
        for store, rate in zip(stores, (0.5, 0.25), strict=True)
    ]
    for each in pending:
        with pytest.raises(ServerError, match=r"groups 0 and 1 do not update .*rate=0.5.*rate=0.25"):
            each.wait()
    assert not centre(stores[0], layout).any()


def test_what_a_group_brought_with_other_numbers_counts_though_it_has_left(flat_of_ours):
    layout = layout_of(100)
    stores = joined(flat_of_ours, 2, layout, SGD(rate=0.0))
    ones, rules = np.ones(layout.length, np.float32), ((layout.length, SGD(rate=0.5)),)
    stores[1].exchange("w", ones, ones.copy(), 0, layout.length, rules)
    time.sleep(0.2)
    stores[1].close()
    answer = ones.copy()
    stores[0].exchange("w", ones, answer, 0, layout.length, rules).wait()
    assert (answer == -1).all()


WHOLE = -1
"""Stands for the length of the layout."""


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (((50, SGD(rate=1.0)),), "not in order"),
        (((50, SGD(rate=1.0)), (50, SGD(rate=1.0)), (WHOLE, SGD(rate=1.0))), "not in order"),
        (((60, SGD(rate=1.0)), (50, SGD(rate=1.0)), (WHOLE, SGD(rate=1.0))), "not in order"),
        (((WHOLE, Momentum(rate=1.0)),), "has the rule SGD"),
        (((WHOLE, SGD(rate=-1.0)),), "rate"),
    ],
)
def test_rules_that_cannot_be_are_refused(flat_of_ours, rules, said):
    layout = layout_of(100)
    (store,) = joined(flat_of_ours, 1, layout, SGD(rate=0.0))
    ones = np.ones(layout.length, np.float32)
    if rules[-1][0] == WHOLE:
        rules = (*rules[:-1], (layout.length, rules[-1][1]))
    with pytest.raises(HybridPSError, match=said):
        store.exchange("w", ones, ones, 0, layout.length, rules).wait()


def test_the_states_of_a_rule_are_read_and_replaced(flat_of_ours):
    layout = layout_of(1000)
    (store,) = joined(flat_of_ours, 1, layout, Momentum(rate=0.5, momentum=0.5))
    ones, state = np.ones(layout.length, np.float32), np.empty(layout.length, np.float32)
    store.exchange("w", ones, ones.copy(), 0, layout.length).wait()
    store.pull("w", state, 1)
    assert (state == -0.5).all()
    store.put("w", 4 * ones, 1)
    answer = ones.copy()
    store.exchange("w", ones, answer, 0, layout.length).wait()
    assert (answer == -0.5 + 0.5 * 4 - 0.5).all()
    for wrong in (lambda: store.pull("w", state, 2), lambda: store.put("w", state, 2)):
        with pytest.raises(ServerError, match="has no state 2: its rule, Momentum, keeps 1"):
            wrong()
    with pytest.raises(NotFiniteError):
        store.put("w", np.full(layout.length, np.nan, np.float32), 1)
    store.pull("w", state, 1)
    assert (state == 1.5).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_rows_of_a_group_are_added_up_where_they_lie(tier, dtype, elsewhere):
    layout = layout_of(1100, dtype)
    stores = joined(tier, 2, layout, Sum())
    first = 256 if dtype == "float32" else 0
    rows, others = (
        [[shared_memory(layout.nbytes).view(dtype) for _ in range(count)] for count in (2, 3)] for _ in range(2)
    )
    answers = others if elsewhere else rows
    for each in (rows, answers):
        for seed, row in enumerate(row for group in each for row in group):
            row[:] = numbers(layout, seed)
    given = zip(stores, rows, answers, strict=True)
    for operation in [s.exchange_rows("w", own, out, first, layout.length) for s, own, out in given]:
        operation.wait()
    expected = np.sum([numbers(layout, seed) for seed in range(5)], axis=0)
    for seed, row in enumerate(row for group in answers for row in group):
        np.testing.assert_array_equal(row[first:], expected[first:])
        np.testing.assert_array_equal(row[:first], numbers(layout, seed)[:first])
    for seed, row in enumerate(row for group in rows for row in group):
        assert not elsewhere or np.array_equal(row, numbers(layout, seed))


def test_rows_that_a_server_does_not_reach_are_left_alone(tier):
    layout = layout_of()
    (store,) = joined(tier, 1, layout, Sum())
    rows = [shared_memory(layout.nbytes).view(np.float32), np.ones(layout.length, np.float32)]
    assert store.exchange_rows("w", rows, rows, 0, layout.length) is None
    assert store.exchange_rows("w", rows[:1], rows[1:], 0, layout.length) is None
    assert not rows[0].any()
    assert not centre(store, layout).any()


def test_tables_and_jobs_do_not_meet(tier):
    layout = layout_of()
    one, other = tier.open(job="one"), tier.open(job="other")
    one.register("w", layout, numbers(layout, 1), Sum())
    assert other.register("w", layout, numbers(layout, 2), Sum()) is joining(tier)
    assert one.register("v", layout, numbers(layout, 3), Sum()) is joining(tier)
    np.testing.assert_array_equal(centre(one, layout), numbers(layout, 1))
    np.testing.assert_array_equal(centre(other, layout), numbers(layout, 2))


def test_the_centre_is_complete_when_an_exchange_is(tier):
    layout = layout_of()
    first, second = joined(tier, 2, layout, Sum())
    values = numbers(layout, 0)
    pending = first.exchange("w", values, values, 0, layout.length)
    assert not centre(first, layout).any()
    swap(second, numbers(layout, 1))
    np.testing.assert_array_equal(centre(second, layout), numbers(layout, 0) + numbers(layout, 1))
    pending.wait()


def test_of_an_element_a_group_has_one_exchange_under_way(tier):
    layout = layout_of()
    first, second = joined(tier, 2, layout, Sum())
    values = numbers(layout, 0)
    pending = first.exchange("w", values, np.empty_like(values), 0, 300)
    with pytest.raises(ProtocolError, match="group 0 contributes to chunk 1 twice"):
        first.exchange("w", values, np.empty_like(values), 299, 500).wait()
    others = first.exchange("w", values, np.empty_like(values), 300, layout.length)
    swap(second, numbers(layout, 1))
    pending.wait()
    others.wait()


def exchange_spans(store, values, edges, order=None):
    """One round of a whole buffer in spans between the edges, begun in that order; returns the answer."""
    spans = [*pairwise(edges)]
    answer = np.full_like(values, np.nan)
    operations = [store.exchange("w", values, answer, *spans[place]) for place in order or range(len(spans))]
    for operation in operations:
        operation.wait()
    return answer


def test_one_group_sends_the_whole_buffer_another_key_by_key(tier):
    layout = Layout.of("float32", {f"w{size}": (size,) for size in (0, 1, 1000, 16, 300, 257, 3)})
    keys = [0, *(slot.start for slot in layout.slots), layout.length]
    stores = joined(tier, 3, layout, Sum())
    for step in range(3):
        values = [numbers(layout, 10 * step + group) for group in range(3)]
        answers = together(
            lambda v=values: swap(stores[0], v[0].copy()),
            lambda v=values: exchange_spans(stores[1], v[1], keys),
            lambda v=values: exchange_spans(stores[2], v[2], keys, [*reversed(range(len(keys) - 1))]),
        )
        for answer in answers:
            np.testing.assert_array_equal(answer, np.sum(values, axis=0))
        np.testing.assert_array_equal(centre(stores[0], layout), np.sum(values, axis=0))


@pytest.mark.parametrize("rule", [Momentum(rate=0.1, rescale=0.5), Adam(weight_decay=0.1)], ids=["momentum", "adam"])
def test_spans_change_no_bit_of_a_rule(tier, rule):
    layout, expected = layout_of(1100), None
    for table in (0, 1):
        stores = joined(tier, 2, layout, rule, numbers(layout, 9))
        for step in range(1, 4):
            values = [numbers(layout, 10 * step + group) for group in range(2)]
            edges = [0, 100 * step, 512, 700, layout.length] if table else [0, layout.length]
            answers = together(
                lambda s=stores, v=values, e=edges: exchange_spans(s[0], v[0], e),
                lambda s=stores, v=values: swap(s[1], v[1].copy()),
            )
            np.testing.assert_array_equal(*answers)
        expected = answers[0] if expected is None else expected
        for store in stores:
            store.close()
    np.testing.assert_array_equal(answers[0], expected)


@pytest.fixture(scope="module")
def pair():
    """Two groups with one table at two servers."""
    with ExitStack() as stack:
        servers = [stack.enter_context(in_thread(Server(threads=2))) for _ in range(2)]
        addresses = [server.address for server in servers]
        options = {"job": "job", "groups": 2, "settings": SETTINGS}
        stores = [stack.enter_context(Client(addresses, group=group, **options)) for group in range(2)]
        together(*(lambda s=store: s.register("w", layout_of(1600), None, Sum()) for store in stores))
        yield stores


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_spans_of_two_groups_meet(pair, data):
    layout, parts = layout_of(1600), []
    for _ in range(2):
        cuts = data.draw(st.lists(st.integers(0, 1600), max_size=12))
        edges = [0, *sorted(cuts), 1600]
        parts.append((edges, data.draw(st.permutations(range(len(edges) - 1)))))
    values = [numbers(layout, data.draw(st.integers(0, 1000))) for _ in range(2)]
    answers = together(*(lambda g=g: exchange_spans(pair[g], values[g], *parts[g]) for g in range(2)))
    for answer in answers:
        np.testing.assert_array_equal(answer, values[0] + values[1])


def test_a_table_that_all_groups_dropped_is_gone(tier):
    layout = layout_of()
    first, second = joined(tier, 2, layout, Sum(), numbers(layout, 0))
    first.drop("w")
    with pytest.raises(ServerError, match="'w' is not registered"):
        swap(first, numbers(layout, 1))
    np.testing.assert_array_equal(swap(second, numbers(layout, 1)), numbers(layout, 1))
    second.drop("w")
    for store in (first, second):
        assert store.register("w", layout, numbers(layout, 2), Sum()) is Joining.DROPPED
        with pytest.raises(ServerError, match="'w' is not registered"):
            centre(store, layout)


def test_a_group_that_dropped_a_table_alone_may_have_it_again(tier):
    layout = layout_of()
    first, second = joined(tier, 2, layout, Sum(), numbers(layout, 0))
    first.drop("w")
    assert first.register("w", layout, None, Sum()) is Joining.LATE
    answers = together(*(lambda s=s, g=g: swap(s, numbers(layout, g)) for g, s in enumerate((first, second))))
    for answer in answers:
        np.testing.assert_array_equal(answer, numbers(layout, 0) + numbers(layout, 1))


def test_a_drop_fails_the_exchanges_under_way(tier):
    layout = layout_of()
    first, second = joined(tier, 2, layout, Sum())
    pending = first.exchange("w", numbers(layout, 0), np.empty(layout.length, np.float32), 0, layout.length)
    first.drop("w")
    with pytest.raises(ServerError, match="was dropped"):
        pending.wait()
    swap(second, numbers(layout, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", [Sum(), Momentum(rate=0.1)], ids=lambda rule: type(rule).__name__)
def test_a_codec_rounds_what_travels(flat_of_ours, dtype, rule):
    """Values and answers are rounded, the centre is not; also where memory could be shared."""
    layout = layout_of(1100, dtype)
    rng = np.random.default_rng(0)
    stores = [flat_of_ours.open(group, 2) for group in range(2)]
    expected = rng.standard_normal(layout.length).astype(dtype)
    initial = expected.copy()
    together(*(lambda s=store: s.register("w", layout, initial, rule, codec="float16") for store in stores))
    np.testing.assert_array_equal(centre(stores[0], layout), initial)
    state = [np.zeros(layout.length, dtype) for _ in range(rule.states)]
    for step in (1, 2):
        values = [rng.standard_normal(layout.length).astype(dtype) for _ in range(2)]
        sent, answer = [each.astype(np.float16).astype(dtype) for each in values], np.empty(layout.length, dtype)
        apply_(rule, sent, [answer], expected, state, step=step, contributions=2)
        found = together(
            lambda v=values: swap(stores[0], v[0].copy()),
            lambda v=values: exchange_spans(stores[1], v[1], [0, 100, 700, layout.length]),
        )
        for each in found:
            np.testing.assert_array_equal(each, answer.astype(np.float16).astype(dtype))
        np.testing.assert_array_equal(centre(stores[1], layout), expected)
    rows = [shared_memory(layout.nbytes).view(dtype)]
    assert stores[0].exchange_rows("w", rows, rows, 0, layout.length) is None


@pytest.mark.parametrize(("bits", "workers"), [(1, 1), (2, 1), (2, 3), (2, 100)])
def test_quantised_values_are_packed_on_the_way_and_exact_otherwise(tier, bits, workers):
    """Spans begin anywhere, also within a byte; a group may share memory with a server while another one sends."""
    layout, spec = layout_of(1101), Quantised(bits, 0.1, workers)
    rng, stores = np.random.default_rng(0), [tier.open(group, 5) for group in range(5)]
    together(*(lambda s=store: s.register("w", layout, None, Sum(), codec=spec) for store in stores))
    edges = [[0, layout.length], [0, 101, 703, 1030, layout.length], [0, 1, 2, 3, layout.length]]
    for _ in range(2):
        counts = [rng.integers(-workers, workers + 1, layout.length) for _ in stores]
        if (bits, workers) == (1, 1):
            counts = [np.where(count < 0, -1, 1) for count in counts]
        values = [(count * np.float32(spec.unit)).astype(np.float32) for count in counts]
        expected, sent = np.zeros(layout.length, np.float32), [store.bytes_to_servers for store in stores]
        for each in values:
            expected += each
        places = zip(stores, values, [*edges, *edges[:2]], strict=True)
        for found in together(*(lambda at=at: exchange_spans(*at) for at in places)):
            np.testing.assert_array_equal(found, expected)
        for store, before in zip(stores, sent, strict=True):
            assert store.bytes_to_servers - before <= layout.nbytes // 4 + 8
    np.testing.assert_array_equal(centre(stores[0], layout), expected)


def test_servers_that_update_answer_exactly_to_quantised_values(flat_of_ours):
    layout, spec, rule = layout_of(1101), Quantised(2, 0.3), Momentum(rate=0.1)
    rng, stores = np.random.default_rng(1), [flat_of_ours.open(group, 2) for group in range(2)]
    expected = rng.standard_normal(layout.length).astype(np.float32)
    initial, state = expected.copy(), [np.zeros(layout.length, np.float32)]
    together(*(lambda s=store: s.register("w", layout, initial, rule, codec=spec) for store in stores))
    for step in (1, 2):
        values = [(rng.integers(-1, 2, layout.length) * np.float32(0.3)).astype(np.float32) for _ in stores]
        answer = np.empty(layout.length, np.float32)
        apply_(rule, values, [answer], expected, state, step=step, contributions=2)
        for found in together(*(lambda s=s, v=v: swap(s, v.copy()) for s, v in zip(stores, values, strict=True))):
            np.testing.assert_array_equal(found, answer)


def test_another_compression_is_refused_with_both(tier):
    first, second = tier.open(0, 2), tier.open(1, 2)
    first.register("w", layout_of(), None, Sum(), codec=Quantised(1, 0.5))
    with pytest.raises(ServerError, match="codec=Quantised.*threshold=0.5.*threshold=0.25"):
        second.register("w", layout_of(), None, Sum(), codec=Quantised(1, 0.25))


def test_another_codec_is_refused_with_both(tier):
    first, second = tier.open(0, 2), tier.open(1, 2)
    first.register("w", layout_of(), None, Sum())
    with pytest.raises(ServerError, match="codec=exact.*float16"):
        second.register("w", layout_of(), None, Sum(), codec="float16")


@pytest.mark.parametrize(("dtype", "eps"), [("float16", 2e-3), ("float32", 1e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_elastic_is_its_equation_and_conserves(flat, dtype, eps, alpha):
    layout = layout_of(700, dtype)
    rng = np.random.default_rng(3)
    initial, values = (rng.standard_normal(layout.length).astype(dtype) for _ in range(2))
    rule = Elastic(alpha)
    store, *_ = joined(flat, 3, layout, rule, initial)
    answer = np.empty_like(values)
    store.exchange("w", values, answer, 0, layout.length).wait()
    after = values.copy()
    rule.apply_answer_(after, answer)
    w, c = values.astype(np.float64), initial.astype(np.float64)
    new = centre(store, layout).astype(np.float64)
    scale = 4 * eps * (np.abs(w) + np.abs(c)).max()
    np.testing.assert_allclose(new, c + alpha * (w - c), rtol=0, atol=scale)
    np.testing.assert_allclose(after, w - alpha * (w - c), rtol=0, atol=scale)
    np.testing.assert_allclose(after + new, w + c, rtol=0, atol=scale)
    if alpha == 0:
        np.testing.assert_array_equal(new, c)
        np.testing.assert_array_equal(after, w)


def test_elastic_with_alpha_1_swaps(flat):
    layout = layout_of()
    rule = Elastic(1.0)
    store, *_ = joined(flat, 3, layout, rule, numbers(layout, 0))
    values = numbers(layout, 1)
    rule.apply_answer_(values, swap(store, values.copy()))
    np.testing.assert_array_equal(values, numbers(layout, 0))
    np.testing.assert_array_equal(centre(store, layout), numbers(layout, 1))


def test_elastic_contracts_to_one_point_and_conserves_the_total(flat):
    layout, groups = layout_of(600), 3
    rule = Elastic(0.3)
    initial = numbers(layout, 9)
    stores = joined(flat, groups, layout, rule, initial)
    weights = [numbers(layout, group) for group in range(groups)]
    total = np.sum([initial, *weights], axis=0)

    def train(group):
        for _ in range(40):
            answer = np.empty_like(weights[group])
            stores[group].exchange("w", weights[group], answer, 0, layout.length).wait()
            rule.apply_answer_(weights[group], answer)

    together(*(lambda g=g: train(g) for g in range(groups)))
    train(0)
    for _ in range(30):
        for group, store in enumerate(stores):
            rule.apply_answer_(weights[group], swap(store, weights[group].copy()))
    point = centre(stores[0], layout)
    np.testing.assert_allclose(point + np.sum(weights, axis=0), total, rtol=0, atol=2e-3)
    for weight in weights:
        np.testing.assert_allclose(weight, point, rtol=0, atol=1e-2)


def test_elastic_does_not_wait_for_other_groups(tier):
    layout = layout_of()
    store = tier.open(0, 5)
    store.register("w", layout, None, Elastic(0.5))
    for _ in range(3):
        swap(store, numbers(layout, 0))


def test_the_others_go_on_when_a_group_leaves(tier):
    layout = layout_of()
    first, second, third = joined(tier, 3, layout, Sum())
    arrays = [numbers(layout, 0), numbers(layout, 1)]
    pending = [
        store.exchange("w", array, array, 0, layout.length)
        for store, array in zip((first, second), arrays, strict=True)
    ]
    third.close()
    for operation, array in zip(pending, arrays, strict=True):
        operation.wait()
        np.testing.assert_array_equal(array, numbers(layout, 0) + numbers(layout, 1))
    second.close()
    np.testing.assert_array_equal(swap(first, numbers(layout, 2)), numbers(layout, 2))


def test_a_group_that_left_may_come_back(tier):
    layout = layout_of()
    first, second = joined(tier, 2, layout, Sum(), numbers(layout, 5))
    second.close()
    swap(first, numbers(layout, 0))
    second = tier.open(1, 2)
    assert second.register("w", layout, None, Sum()) is Joining.LATE
    np.testing.assert_array_equal(centre(second, layout), numbers(layout, 0))
    answers = together(*(lambda s=s, g=g: swap(s, numbers(layout, g)) for g, s in enumerate((first, second))))
    for answer in answers:
        np.testing.assert_array_equal(answer, numbers(layout, 0) + numbers(layout, 1))


def in_step(tier, layout):
    """Two groups that must do the same number of rounds, after the first one."""
    stores = [tier.open(group, 2) for group in range(2)]
    clock = BulkSynchronous(equally=True)
    together(*(lambda s=store: s.register("w", layout, None, Sum(), clock) for store in stores))
    together(*(lambda s=store: swap(s, numbers(layout, 1)) for store in stores))
    return stores


@pytest.mark.parametrize("first", ["the end", "the step"])
@pytest.mark.parametrize("drops", [True, False])
def test_a_step_that_another_group_does_not_do_any_more_is_an_error(tier, first, drops):
    layout = layout_of()
    one, other = in_step(tier, layout)
    values = numbers(layout, 0)

    def end():
        if drops:
            other.drop("w")
        other.close()

    if first == "the end":
        end()
    pending = one.exchange("w", values, values, 0, layout.length)
    if first == "the step":
        end()
    with pytest.raises(ServerError, match="group 0 does another step, but group 1 came to the end of the training"):
        pending.wait()
    np.testing.assert_array_equal(values, numbers(layout, 0))


@pytest.mark.parametrize("drops", [True, False])
def test_a_step_goes_on_without_a_group_that_leaves_before_its_end(tier, drops):
    """Whether a group that drops the table is at its end is known when it has left the job."""
    layout = layout_of()
    one, other = in_step(tier, layout)
    values = numbers(layout, 3)
    if drops:
        other.drop("w")
    pending = one.exchange("w", values, values, 0, layout.length)
    other.close(early=True)
    pending.wait()
    np.testing.assert_array_equal(values, numbers(layout, 3))


def test_the_centre_outlives_its_initialiser_but_not_its_last_group(tier):
    layout = layout_of(3000)
    first, second = tier.open(0, 2), tier.open(1, 2)
    first.register("w", layout, numbers(layout, 0), Sum())
    first.close()
    assert second.register("w", layout, numbers(layout, 1), Sum()) is Joining.LATE
    second.close()
    third = tier.open(0, 2)
    assert third.register("w", layout, numbers(layout, 2), Sum()) is joining(tier)
    np.testing.assert_array_equal(centre(third, layout), numbers(layout, 2))


def test_waiting_twice_raises(every_tier):
    layout = layout_of()
    store, *_ = joined(every_tier, 3, layout, Elastic(0.5))
    pending = store.exchange("w", numbers(layout, 0), numbers(layout, 0), 0, layout.length)
    pending.wait()
    with pytest.raises(ServerError, match="waited for already"):
        pending.wait()


def test_a_group_that_does_not_come_is_a_deadline(tier):
    layout = layout_of()
    tier.open(0, 2).register("w", layout, None, Sum())  # with the usual deadline, as first-time set-up is slow
    store = tier.open(1, 2, deadline_seconds=2)
    store.register("w", layout, None, Sum())
    with pytest.raises(DeadlineError, match="exchange of table 'w' is not done after 2 s"):
        swap(store, numbers(layout, 0))


def test_a_closed_store_says_so(tier):
    layout = layout_of()
    (store,) = joined(tier, 1, layout, Sum())
    store.close()
    store.close()
    for call in (
        lambda: swap(store, numbers(layout, 0)),
        lambda: store.register("v", layout, None, Sum()),
        lambda: centre(store, layout),
    ):
        with pytest.raises(HybridPSError, match="has left"):
            call()
