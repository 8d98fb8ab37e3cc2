"""Servers of servers: equal to one server for all, elastic averaging over levels, and what happens when one goes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from hierarchy import SETTINGS, Hierarchy
from hypothesis import given
from hypothesis import strategies as st

from hybridps.config import Settings
from hybridps.config.racks import place_in_rack
from hybridps.errors import ConfigError, LayoutError, PlanError, ServerError
from hybridps.memory import Layout
from hybridps.mpi_groups import SoloGroup
from hybridps.processes import ServerProcess
from hybridps.ps.client import Client
from hybridps.ps.clocks import BoundedStale, FreeRunning
from hybridps.ps.keys import AllowList, make_tenant
from hybridps.ps.model import Joining
from hybridps.ps.rules import SGD, Adam, Elastic, ElasticTogether, Mean, Momentum, Outer, Sum
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.server.upstream import Parents
from hybridps.shared_memory import shared_memory
from hybridps.tiers import ServersTier

pytestmark = pytest.mark.timeout(60)

LAYOUT = Layout.of("float32", {"a": (700,), "b": (300, 2)})
RULES = (
    Sum(),
    Mean(),
    SGD(rate=0.5),
    Momentum(rate=0.25, momentum=0.5),
    Adam(rate=0.5),
    Outer(),
    ElasticTogether(0.125),
)


@contextmanager
def hierarchy(**options):
    tree = Hierarchy(**options)
    try:
        yield tree
    finally:
        tree.close()


def numbers(seed, layout=LAYOUT):
    return np.random.default_rng(seed).integers(-8, 8, layout.length).astype(layout.dtype)


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def empty():
    return np.empty(LAYOUT.length, LAYOUT.dtype)


def train(store, group, rule, steps, initial, in_place=False):
    """The answers that a group sees, and the centre after each."""
    joining = store.register("w", LAYOUT, initial, rule)
    assert joining is (Joining.LATE if store.has_parent or group > 0 else Joining.NEW)
    make = (lambda: shared_memory(LAYOUT.nbytes).view(LAYOUT.dtype)) if in_place else empty
    values, answer, seen = make(), make(), []
    for step in range(steps):
        values[:] = numbers(100 * step + group)
        store.exchange("w", values, answer, 0, LAYOUT.length).wait()
        out = empty()
        store.pull("w", out)
        seen += [answer.copy(), out]
    return seen


def trained(tree, groups, rule, steps=3, **options):
    stores = [tree.open(group, groups) for group in range(groups)]
    parts = [
        lambda g=group, s=store: train(s, g, rule, steps, numbers(7), **options) for group, store in enumerate(stores)
    ]
    return together(*parts)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_racks_of_unequal_size_equal_one_server(rule):
    with hierarchy(racks=1) as flat:
        flat.servers = flat.parents
        expected = trained(flat, 3, rule)
    # Two groups in the first rack and one in the second: the values are added in the same order.
    for shape in ({"racks": 2}, {"racks": 3, "servers": 2, "parents": 2}):
        with hierarchy(**shape) as tree:
            for there, here in zip(expected, trained(tree, 3, rule, in_place=shape.get("servers") == 2), strict=True):
                for mine, theirs in zip(here, there, strict=True):
                    np.testing.assert_array_equal(mine, theirs)


def test_three_levels_equal_one_server():
    """A root; two parents under it; the first has two racks of 2 and 1 groups, the other one rack of one group."""
    with hierarchy(racks=2) as tree:
        left = tree.rack_servers([tree.servers[0]], 2)
        right = tree.rack_servers([tree.servers[1]], 1)
        places = [(left[0], 0, 2), (left[0], 1, 2), (left[1], 0, 1), (right[0], 0, 1)]
        stores = [
            tree.enter(Client([server.address], job="job", group=group, groups=groups, settings=SETTINGS))
            for server, group, groups in places
        ]
        results = together(*(lambda g=g, s=s: train(s, g, Mean(), 2, numbers(g)) for g, s in enumerate(stores)))
    for step in range(2):
        expected = np.mean([numbers(100 * step + group) for group in range(4)], axis=0)
        for seen in results:
            np.testing.assert_allclose(seen[2 * step], expected, rtol=1e-6)
            np.testing.assert_array_equal(seen[2 * step], seen[2 * step + 1])


def test_all_racks_begin_with_the_values_of_the_first():
    with hierarchy(racks=2) as tree:
        stores = [tree.open(group, 4) for group in range(4)]
        together(*(lambda g=g, s=s: s.register("w", LAYOUT, numbers(g), SGD(rate=1)) for g, s in enumerate(stores)))
        for store in stores:
            out = empty()
            store.pull("w", out)
            np.testing.assert_array_equal(out, numbers(0))


def swap(store, values, table="w"):
    store.exchange(table, values, values, 0, LAYOUT.length).wait()
    return values


def centre(store):
    out = empty()
    store.pull("w", out)
    return out


def joined(tree, groups, rule, initial=None, **options):
    stores = [tree.open(group, groups, **options) for group in range(groups)]
    together(*(lambda s=s: s.register("w", LAYOUT, initial, rule) for s in stores))
    return stores


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_rounds_follow_each_other_though_nobody_waits():
    """A rack may be ahead of the other one, and a pull comes after the group's own rounds."""
    groups, steps = 11, 5
    with hierarchy(racks=2) as tree:
        stores = joined(tree, groups, SGD(rate=1))
        values = [empty() for _ in stores]
        for step in range(steps):
            under_way = []
            for group, store in enumerate(stores):
                values[group][:] = numbers(100 * step + group)
                under_way.append(store.exchange("w", values[group], values[group], 0, LAYOUT.length))
            for pending in under_way:
                pending.wait()
        expected = -sum(numbers(100 * step + group) for step in range(steps) for group in range(groups))
        for out in together(*(lambda s=s: centre(s) for s in stores)):
            np.testing.assert_array_equal(out, expected)


def test_a_rack_that_waits_for_a_registration_goes_on_with_its_rounds():
    with hierarchy(racks=2) as tree:
        stores = joined(tree, 4, Sum())
        arrays = [numbers(group) for group in range(4)]

        def first():
            pending = stores[2].exchange("w", arrays[2], arrays[2], 0, LAYOUT.length)
            stores[2].register("v", LAYOUT, None, Sum())  # waits for the first rack
            pending.wait()

        def second():
            until(lambda: any(table.name == "v" for _, table in tree.parents[0]._loop.jobs.tables()))
            swap(stores[3], arrays[3])

        def of_first_rack(group):
            swap(stores[group], arrays[group])
            stores[group].register("v", LAYOUT, None, Sum())

        together(first, second, lambda: of_first_rack(0), lambda: of_first_rack(1))
        for array in arrays:
            np.testing.assert_array_equal(array, sum(numbers(group) for group in range(4)))


def test_a_barrier_meets_the_groups_of_all_racks():
    came, lock = [], threading.Lock()

    def meet(tier, group):
        for meeting in range(3):
            with lock:
                came.append(meeting)
            tier.barrier()
            with lock:
                assert came.count(meeting) == 3, group

    with hierarchy(racks=2) as tree:
        tiers = [ServersTier(SoloGroup(), tree.open(group, 3), "0/") for group in range(3)]
        together(*(lambda g=g, t=t: meet(t, g) for g, t in enumerate(tiers)))


@pytest.mark.parametrize("bad", [(1,), (0, 1), (2,)])
def test_values_that_are_no_numbers_do_not_count(bad):
    """Racks of 2 and 1 groups: a rack without usable values counts for none."""
    with hierarchy(racks=2, check_finite=True) as tree:
        stores = joined(tree, 3, Mean())

        def step(group):
            values = numbers(group)
            if group in bad:
                values[300] = np.nan
                with pytest.raises(NotFiniteError, match="element 44"):
                    swap(stores[group], values)
                return None
            return swap(stores[group], values)

        expected = np.mean([numbers(group) for group in range(3) if group not in bad], axis=0)
        for answer in together(*(lambda g=g: step(g) for g in range(3))):
            # The chunk that was refused is the second one; the others have all groups.
            if answer is not None:
                np.testing.assert_array_equal(answer[256:512], expected[256:512])
        np.testing.assert_array_equal(
            together(*(lambda g=g: swap(stores[g], numbers(g)) for g in range(3)))[0],
            np.mean([numbers(group) for group in range(3)], axis=0, dtype=np.float32),
        )


def test_a_sum_that_is_no_number_is_refused_by_the_parents_and_the_others_go_on():
    with hierarchy(racks=2, check_finite=True) as tree:
        stores = joined(tree, 3, Sum())

        def step(group):
            values = numbers(group)
            values[300] = 3e38 if group < 2 else 1
            if group < 2:
                with pytest.raises(NotFiniteError, match="element 44"):
                    swap(stores[group], values)
                return None
            return swap(stores[group], values)

        *_, answer = together(*(lambda g=g: step(g) for g in range(3)))
        assert answer[300] == 1
        for answer in together(*(lambda g=g: swap(stores[g], numbers(g)) for g in range(3))):
            np.testing.assert_array_equal(answer, sum(numbers(group) for group in range(3)))


def test_elastic_contracts_to_one_point_and_conserves_the_total():
    rule, groups, racks = Elastic(0.3), 3, 2
    with hierarchy(racks=racks, servers=2, parents=2) as tree:
        initial = numbers(50)
        stores = joined(tree, groups, rule, initial)
        weights = [numbers(group) for group in range(groups)]
        # One centre in each rack, and the parents': what all together is stays.
        point = (sum(weights) + (racks + 1) * initial) / (groups + racks + 1)

        def train(group):
            for _ in range(30):
                rule.apply_answer_(weights[group], swap(stores[group], weights[group].copy()))

        together(*(lambda g=g: train(g) for g in range(groups)))
        for _ in range(60):
            for group in range(groups):
                rule.apply_answer_(weights[group], swap(stores[group], weights[group].copy()))
        for weight in weights:
            np.testing.assert_allclose(weight, point, rtol=0, atol=2e-2)


def test_tables_are_dropped_while_their_rack_averages_with_the_parents():
    rule = Elastic(0.5)
    with hierarchy(racks=1, parents=2) as tree:
        store = tree.open()
        for number in range(10):
            table, initial = f"w{number}", numbers(number)
            store.register(table, LAYOUT, initial, rule)
            values = numbers(number + 1)
            # The rack goes up to its parents after this exchange, and the drop comes before they have answered.
            distance = swap(store, values.copy(), table)
            np.testing.assert_allclose(distance, (values - initial) * 0.5)
            store.drop(table)


def test_what_racks_cannot_compute_is_refused():
    with hierarchy(racks=2) as tree:
        store = tree.open(0, 2)
        for rule, clock in ((SGD(rate=1), FreeRunning()), (Momentum(rate=1), BoundedStale(1))):
            with pytest.raises(ServerError) as refused:
                store.register("w", LAYOUT, None, rule, clock)
            for words in (type(rule).__name__, type(clock).__name__, "BulkSynchronous", "Elastic"):
                assert words in str(refused.value)


def test_another_layout_in_another_rack_is_refused():
    with hierarchy(racks=2) as tree:
        first, second = tree.open(0, 2), tree.open(1, 2)
        other = Layout.of("float32", {"a": (700,), "b": (600,)})
        first.register("w", LAYOUT, None, Sum())
        with pytest.raises(LayoutError, match="lost its parents.*key 'server 0-of-1, 2 keys"):
            second.register("w", other, None, Sum())
        with pytest.raises(LayoutError):
            second.register("v", LAYOUT, None, Sum())


def test_groups_leave_a_rack_and_a_rack_is_left():
    with hierarchy(racks=2) as tree:
        stores = joined(tree, 4, Mean())
        arrays = [numbers(group) for group in range(4)]
        pending = [stores[g].exchange("w", arrays[g], arrays[g], 0, LAYOUT.length) for g in (0, 2, 3)]
        stores[1].close()
        for operation in pending:
            operation.wait()
        np.testing.assert_allclose(arrays[0], (numbers(0) + numbers(2) + numbers(3)) / 3, rtol=1e-6)
        stores[2].close()
        stores[3].close()
        np.testing.assert_array_equal(swap(stores[0], numbers(9)), numbers(9))
        # The second rack comes back, with the centre that is there.
        again = tree.open(2, 4)
        assert again.register("w", LAYOUT, numbers(1), Mean()) is Joining.LATE
        np.testing.assert_array_equal(centre(again), numbers(9))


def test_a_rack_that_comes_back_keeps_its_own_values_of_a_table_that_the_others_have_dropped():
    """As with initial values, when the only group of a rack is started again."""
    with hierarchy(racks=2) as tree:
        stores = joined(tree, 2, Sum(), numbers(5))
        for store in stores:
            store.drop("w")
        stores[1].close()
        again = tree.open(1, 2)
        values = numbers(6)
        assert again.register("w", LAYOUT, values, Sum()) is Joining.LATE
        np.testing.assert_array_equal(centre(again), values)
        again.drop("w")


def test_the_centre_outlives_the_loss_of_all_groups():
    settings = msgspec.structs.replace(SETTINGS, lost_seconds=0.6)
    with hierarchy(racks=2, settings=settings) as tree:
        stores = joined(tree, 2, Sum(), numbers(5))
        for store in stores:
            store.close(lost=True)
        root = tree.parents[0]
        until(lambda: root._loop.members.finished(2))
        stores = joined(tree, 2, Sum(), numbers(6))
        np.testing.assert_array_equal(centre(stores[1]), numbers(5))


@pytest.mark.slow
def test_a_lost_rack_is_a_lost_group():
    settings = msgspec.structs.replace(SETTINGS, lost_seconds=1.0)
    with hierarchy(racks=2, settings=settings) as tree:
        told = msgspec.structs.replace(settings, parents=(tree.parents[0].address,), racks=2, rack_index=1)
        with ServerProcess(told) as process:
            tree.servers[1] = process
            first, second = joined(tree, 2, Sum())
            values = numbers(0)
            pending = first.exchange("w", values, values, 0, LAYOUT.length)
            process._process.kill()
            pending.wait()
            np.testing.assert_array_equal(values, numbers(0))
            with pytest.raises(ServerError, match="no sign of life"):
                swap(second, numbers(1))


@pytest.mark.slow
def test_without_parents_all_groups_are_refused_with_the_reason():
    settings = msgspec.structs.replace(SETTINGS, lost_seconds=1.0, reconnect_seconds=0.0)
    with ServerProcess(settings) as parent, hierarchy(racks=0, settings=settings) as tree:
        tree.racks, tree.servers = 2, tree.rack_servers([parent], 2)
        stores = joined(tree, 4, Sum())
        values = numbers(0)
        pending = stores[0].exchange("w", values, values, 0, LAYOUT.length)
        parent._process.kill()
        lost = f"lost its parents at {parent.address}: {parent.address} gave no sign of life for 1 s"
        with pytest.raises(ServerError, match=lost):
            pending.wait()
        for store in stores:
            for call in (lambda s=store: swap(s, numbers(1)), lambda s=store: centre(s)):
                with pytest.raises(ServerError, match=lost):
                    call()


def test_parents_that_demand_keys(tmp_path):
    theirs = make_tenant(tmp_path, "racks")
    settings = msgspec.structs.replace(SETTINGS, connect_seconds=1.0)
    with hierarchy(racks=0, settings=settings) as tree:
        parent = tree.serve(allowed=AllowList.load(tmp_path))
        tree.racks, tree.servers = 1, tree.rack_servers([parent], 1)
        with pytest.raises(ServerError, match="refused a connection without keys"):
            tree.open().register("w", LAYOUT, None, Sum())
        tree.settings = msgspec.structs.replace(settings, keys=str(theirs))
        tree.racks, tree.servers = 2, tree.rack_servers([parent], 2)
        stores = [tree.open(group, 2, keys=None) for group in range(2)]
        together(*(lambda s=s: s.register("w", LAYOUT, None, Sum()) for s in stores))
        for answer in together(*(lambda g=g, s=s: swap(s, numbers(g)) for g, s in enumerate(stores))):
            np.testing.assert_array_equal(answer, numbers(0) + numbers(1))


def test_parents_that_are_not_there():
    settings = msgspec.structs.replace(SETTINGS, connect_seconds=0.5)
    with hierarchy(racks=0, settings=settings) as tree:
        gone = tree.serve()
        gone.stop()
        tree.racks, tree.servers = 1, tree.rack_servers([gone], 1)
        store = tree.open()
        with pytest.raises(ServerError, match=f"no answer from {gone.address} within 0.5 s"):
            store.register("w", LAYOUT, None, Sum(), None)


def test_places_that_cannot_be():
    with pytest.raises(ConfigError, match="HYBRIDPS_RACK_INDEX=2 is none of HYBRIDPS_RACKS=2"):
        Parents.of(Settings(parents=("tcp://127.0.0.1:1",), rack_index=2, racks=2))
    with pytest.raises(PlanError, match="HYBRIDPS_RACKS=3, and 2 groups"):
        place_in_rack(0, 2, 3, ["a", "b", "c"])
    with pytest.raises(PlanError, match="HYBRIDPS_RACKS=2, and 3 servers"):
        place_in_rack(0, 2, 2, ["a", "b", "c"])


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 3))
def test_each_group_has_one_place(groups, racks, each):
    racks = min(groups, racks)
    places = [place_in_rack(group, groups, racks, [str(s) for s in range(racks * each)]) for group in range(groups)]
    for rack in range(racks):
        own = [place for place in places if place.rack == rack]
        assert [place.group for place in own] == list(range(len(own)))
        assert {place.groups for place in own} == {len(own)}
        assert {place.servers for place in own} == {tuple(str(s) for s in range(rack * each, rack * each + each))}
    assert [place.rack for place in places] == sorted(place.rack for place in places)
