"""Checks of what a store sums, keeps and returns."""

from __future__ import annotations

from collections.abc import Iterator

from hybridps.kvstore.conformance.observing import Create, Observed, error_of, filled, new_keys, pulled, values, whole


def check_initial_values_are_those_of_the_first_worker(create: Create) -> Iterator[Observed]:
    store, (one, *more) = create(), new_keys(3)
    store.init(one, filled(5 + store.rank))
    store.init(more, [filled(1), filled(2)])
    yield "one key", pulled(store, one), whole(5)
    yield "of a list of keys, the first", pulled(store, more[0]), whole(1)
    yield "of a list of keys, the second", pulled(store, more[1]), whole(2)


def check_broadcast_fills_all_arrays(create: Create) -> Iterator[Observed]:
    store, (one, other, third) = create(), new_keys(3)
    outs = [filled(0), filled(0)]
    store.broadcast(one, filled(3 + store.rank), out=outs)
    yield "an array for each device", [values(out) for out in outs], [whole(3)] * 2
    lists = [[filled(0)], [filled(0)]]
    store.broadcast([other, third], [filled(1), filled(2)], out=lists)
    yield "a list of keys", [values(out[0]) for out in lists], [whole(1), whole(2)]


def check_what_is_stored_is_the_stores_own(create: Create) -> Iterator[Observed]:
    store, (one, other) = create(), new_keys(2)
    value, out = filled(1), filled(0)
    store.init(one, value)
    store.broadcast(other, value, out=out)
    value[:], out[:] = 9, 9
    yield "after init", pulled(store, one), whole(1)
    yield "after broadcast", pulled(store, other), whole(1)
    got = filled(0)
    store.pull(one, out=got)
    got[:] = 9
    yield "after pull", pulled(store, one), whole(1)


def check_push_stores_the_sum_over_devices_and_workers(create: Create) -> Iterator[Observed]:
    store, (one, *more) = create(), new_keys(4)
    every = store.num_workers
    store.init([one, *more], [filled(1)] * 4)
    store.push(one, filled(8))
    yield "one array", pulled(store, one), whole(8 * every)
    store.push(one, [filled(1)] * 4)
    yield "four devices", pulled(store, one), whole(4 * every)
    store.push(more, [filled(1), filled(2), filled(3)])
    yield "a list of keys", [pulled(store, key) for key in more], [whole(n * every) for n in (1, 2, 3)]
    store.push(more, [[filled(1)] * 2, [filled(2)] * 2, [filled(3)] * 2])
    yield "a list of keys on two devices", [pulled(store, key) for key in more], [whole(n * every) for n in (2, 4, 6)]


def check_a_key_that_is_pushed_twice_in_a_call_counts_twice(create: Create) -> Iterator[Observed]:
    store, (one, other) = create(), new_keys(2)
    store.init([one, other], [filled(0)] * 2)
    store.push([one, one], [filled(1), filled(5)])
    yield "in one call", pulled(store, one), whole(6 * store.num_workers)
    store.push([one, other, one], [filled(1), filled(2), filled(5)])
    yield (
        "with another key between",
        [pulled(store, key) for key in (one, other)],
        [whole(n * store.num_workers) for n in (6, 2)],
    )


def check_pull_fills_every_array(create: Create) -> Iterator[Observed]:
    store, keys = create(), new_keys(3)
    store.init(keys, [filled(n) for n in (1, 2, 3)])
    outs = [filled(0) for _ in range(4)]
    store.pull(keys[0], out=outs)
    yield "four devices", [values(out) for out in outs], [whole(1)] * 4
    outs = [filled(0) for _ in keys]
    store.pull(keys, out=outs)
    yield "a list of keys", [values(out) for out in outs], [whole(n) for n in (1, 2, 3)]
    lists = [[filled(0), filled(0)] for _ in keys]
    store.pull(keys, out=lists)
    yield "a list of keys on two devices", [values(out[1]) for out in lists], [whole(n) for n in (1, 2, 3)]
    yield "out=None", error_of(lambda: store.pull(keys[0])), "AssertionError"


def check_pull_converts_to_the_dtype_of_out(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    store.init(key, filled(3))
    yield "float64", pulled(store, key, dtype="float64"), whole(3)


def check_pushpull_leaves_the_value_beside_out(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    value = filled(8)
    store.init(key, filled(1))
    store.pushpull(key, value, out=filled(0))
    yield "the value", values(value), whole(8)


def check_pushpull_gives_the_sum_and_stores_it(create: Create) -> Iterator[Observed]:
    store, (one, *more) = create(), new_keys(7)
    every = store.num_workers
    store.init([one, *more], [filled(1)] * 7)
    out, value = filled(0), filled(8)
    store.pushpull(one, value, out=out)
    yield "out", values(out), whole(8 * every)
    yield "what is stored", pulled(store, one), whole(8 * every)
    value = filled(2)
    store.pushpull(one, value)
    yield "in place", values(value), whole(2 * every)
    yield "what is stored then", pulled(store, one), whole(2 * every)
    outs = [filled(0) for _ in range(3)]
    store.pushpull(more[:3], [filled(n) for n in (1, 2, 3)], out=outs)
    yield "a list of keys", [values(out) for out in outs], [whole(n * every) for n in (1, 2, 3)]
    lists = [[filled(n), filled(n)] for n in (1, 2, 3)]
    store.pushpull(more[3:], lists)
    yield (
        "a list of keys on two devices",
        [values(each[1]) for each in lists],
        [whole(2 * n * every) for n in (1, 2, 3)],
    )


def check_a_key_twice_in_pushpull(create: Create) -> Iterator[Observed]:
    store, (key,) = create(), new_keys()
    store.init(key, filled(0))
    outs = [filled(0), filled(0)]
    store.pushpull([key, key], [filled(1), filled(5)], out=outs)
    yield "both arrays", [values(out) for out in outs], [whole(6 * store.num_workers)] * 2


def check_one_array_can_be_out_for_several_keys(create: Create) -> Iterator[Observed]:
    store, (one, other) = create(), new_keys(2)
    store.init([one, other], [filled(0)] * 2)
    out = filled(0)
    for key, value in ((one, 1), (other, 2)):
        store.pushpull(key, filled(value), out=out)
    yield "both keys", [pulled(store, key) for key in (one, other)], [whole(n * store.num_workers) for n in (1, 2)]
