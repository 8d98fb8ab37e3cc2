"""The store as users use it, on two workers in one group or in two, with several buckets and chunks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rightness import assert_right
from worlds import environment, mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(220)]

USES = str(Path(__file__).with_name("uses.py"))
RIGHT = [
    "optimizers",
    "schedules",
    "static_shapes",
    "several_devices",
    "devices_that_differ",
    "gradients_that_add_up",
    "clipping",
    "clipping_before_the_step",
    "freezing",
    "mixed_dtypes",
    "sparse_gradients",
    "two_trainers",
    "states",
    "by_hand",
    "a_pushed_gradient_stays",
    "sparse_rows",
    "gradients_taken_anew",
    "gradients_kept_and_taken_anew",
    "left_out_and_back",
    "left_out_for_long",
    "a_branch_that_rests",
    "where_sums_and_weights_go",
    "bad_calls",
    "module_with_fixed_parameters",
    "half_a_step",
    "views_of_gradients",
    "a_gradient_in_another_array",
    "two_stores_sum_one_gradient",
    "numpy_interface",
]


def run(uses: list[str], folder: Path, ranks: int = 2, **settings: str):
    extra = {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items()}
    return mpirun(ranks, ["-m", "hybridps", USES, *uses], extra | {"FOLDER": str(folder)}, timeout=200)


@pytest.mark.parametrize("groups", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_uses_in_one_process(groups: str, tmp_path: Path) -> None:
    uses = [*RIGHT, "fork"]  # fork last: no other case runs in a process that has forked
    done = run(uses, tmp_path, groups=groups, bucket_bytes="2048", chunk_bytes="1024", deadline_seconds="60")
    assert_right(done, uses, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("use", ["fork", "half_a_step", "freezing", "module_with_fixed_parameters"])
def test_uses_alone(use: str, tmp_path: Path) -> None:
    done = run([use], tmp_path, deadline_seconds="30")
    assert_right(done, [use], 2)


def test_the_centre(tmp_path: Path) -> None:
    uses = ["centre_as_it_is_now", "centre_of_one_key_and_later_of_another"]
    uses += ["sparse_gradients_and_a_centre", "precise_optimizers_and_a_centre", "what_a_store_updates_is_averaged"]
    done = run(uses, tmp_path, groups="2", algorithm="elastic", tau="1", alpha="0.5")
    assert_right(done, uses, 2)


def test_a_table_that_is_pushed_and_pulled(tmp_path: Path) -> None:
    uses = ["a_sparse_table_trains_beside_a_centre"]
    done = run(uses, tmp_path, groups="2", algorithm="elastic", tau="50")
    assert_right(done, uses, 2)


def test_a_pull_by_one_worker_alone_is_an_error(tmp_path: Path) -> None:
    """In a group of two; there is another one of one worker."""
    done = run(
        ["pull_by_one_alone"], tmp_path, ranks=3, groups="2", algorithm="elastic", tau="2", deadline_seconds="10"
    )
    assert done.returncode != 0
    assert "centre" in done.stderr, done.stderr


def test_an_engine_that_waits_is_refused(tmp_path: Path) -> None:
    done = mpirun(1, ["-m", "hybridps", USES, "by_hand"], {"MXNET_ENGINE_TYPE": "NaiveEngine"}, timeout=30)
    assert done.returncode == 2
    assert done.stderr.count("NaiveEngine") == 1


def test_the_garbage_collector_leaves_the_modules_of_mxnet_alone_and_collects_the_rest(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, sys, mxnet\n"
        "print('hybridps.kvstore' in sys.modules, gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    told = subprocess.run(
        [sys.executable, "-m", "hybridps", str(script)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout == "True True True\n"


def test_the_type_says_whether_the_trainer_lets_the_store_update() -> None:
    from hybridps.kvstore import TYPES
    from hybridps.kvstore.store import mode_of

    assert [mode_of(name) for name in ("sync", "async", "stale", "elastic")] == ["", "", "_async", "_sync"]
    assert {"dist_hybridps_stale_async", "dist_hybridps_elastic_sync"} <= TYPES.keys()


BUSY = """
import ctypes, threading, time
import mxnet as mx
from hybridps.kvstore import process
from hybridps.kvstore.arrays import push_operation
from hybridps.kvstore.ps_lite.native import _DONE, _START

has_ended = threading.Event()

@_START
def slow(_, on_complete, number):
    time.sleep(1)
    has_ended.set()
    callback, engine, parameter = on_complete.contents
    _DONE(callback or 0)(engine, parameter, None)

def looked(*arguments, then=process.open_job, **options):
    print("idle" if has_ended.is_set() else "busy")
    return then(*arguments, **options)

process.open_job = looked
large = mx.nd.ones((2000, 2000))
push_operation([mx.nd.dot(large, large)], slow, 0)
mx.kv.create("dist_hybridps_sync")
"""


def test_no_operation_is_under_way_when_mpi_starts() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=100)
    assert done.stdout == "idle\n", done.stderr
