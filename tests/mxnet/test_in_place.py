"""Gradients and weights that live in memory of the store: what a program sees of it, and how often they are copied."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
from in_thread import in_thread
from rightness import assert_right
from worlds import mpirun

from hybridps.ps.server import Server

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(280)]

PROGRAMS = str(Path(__file__).with_name("in_place.py"))
DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
SMALL = {"HYBRIDPS_CHUNK_BYTES": "1024", "HYBRIDPS_BUCKET_BYTES": "2048", "HYBRIDPS_DEADLINE_SECONDS": "40"}
SEEN = [
    "plain",
    "inference_in_between",
    "static_shapes",
    "arrays_that_are_held",
    "weights_that_are_written",
    "frozen_and_thawed",
    "fused_when_frozen_and_thawed",
    "gradients_that_add_up",
    "gradients_marked_to_add_up",
    "other_arrays",
    "saved",
    "bound",
    "forked",
    "shared",
    "usual_sums",
    "an_optimizer_that_is_set_anew",
]

ALIKE = ("static_shapes",)
"""Programs that are much like others: nightly."""

OF_SUMS_ALONE = (
    "fused_when_frozen_and_thawed",
    "gradients_marked_to_add_up",
    "usual_sums",
    "an_optimizer_that_is_set_anew",
)
SEEN_WITH_AVERAGES = [name for name in SEEN if name not in OF_SUMS_ALONE]

MODES = {
    "one group, the Trainer updates": (2, {}, "trainer"),
    "one group, the store updates": (2, {}, "store"),
    "groups of one worker, the Trainer updates": (2, {"groups": "2"}, "trainer"),
    "groups of one worker, the servers update": (2, {"groups": "2"}, "store"),
    "groups of several workers, the servers update": (4, {"groups": "2"}, "store"),
    "Elastic in a step that averages, the Trainer updates": (2, {"groups": "2", "type": "elastic"}, "trainer"),
    "Elastic in a step that averages, the store updates": (2, {"groups": "2", "type": "elastic"}, "store"),
}
"""By their names in docs/design.md: ranks, settings, and who updates."""

NIGHTLY = {
    "one group, the store updates",
    "groups of one worker, the servers update",
    "groups of one worker, the Trainer updates",
    "Elastic in a step that averages, the store updates",
}
"""Modes that are much like others."""


def run(ranks: int, programs: list[str], folder: Path, extra: dict[str, str]):
    environment = SMALL | {"FOLDER": str(folder)} | extra
    return mpirun(ranks, ["-m", "hybridps", PROGRAMS, *programs], environment, timeout=260)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.nightly if mode in NIGHTLY else ()) for mode in MODES]
)
def test_copies_of_a_parameter_in_a_step_are_those_of_the_design(mode: str, tmp_path: Path) -> None:
    said = dict(re.findall(r"^\| (.+?) \| (\d) \|", DESIGN.read_text(), re.MULTILINE))
    ranks, settings, update = MODES[mode]
    store = {"elastic": "dist_hybridps_elastic"}.get(settings.get("type", ""), "dist_hybridps_sync")
    extra = {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items() if name != "type"}
    if store == "dist_hybridps_elastic":
        extra["HYBRIDPS_TAU"] = "1"
    done = run(ranks, ["count"], tmp_path, extra | {"UPDATE": update, "STORE": store})
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.findall(r"copies of worker \d: (.*)", done.stdout)
    assert counted == [said[mode]] * ranks


def check_alone(programs: list[str], folder: Path, **extra: str) -> None:
    """Run these programs in one worker with a server, and check what they say."""
    with in_thread(Server()) as server:
        done = run(1, programs, folder, {"HYBRIDPS_SERVERS": server.address} | extra)
    assert_right(done, programs, 1)


def test_the_address_of_an_array_is_asked_for_when_it_has_been_computed() -> None:
    """MXNet would allocate the memory twice if it computed the array at the same time, and the values would be lost."""
    import mxnet as mx

    from hybridps.kvstore.arrays import address_of

    array, factor = mx.nd.ones((800, 800)), mx.nd.ones((800, 800)) / 800
    for _ in range(10):
        array = mx.nd.dot(array, factor)
    computed = np.frombuffer(ctypes.string_at(address_of(array), 4 * array.size), np.float32)
    np.testing.assert_allclose(computed, array.asnumpy().ravel())


def test_the_sum_of_a_gradient_that_was_moved_back_is_not_usual() -> None:
    import mxnet as mx
    from mxnet import autograd

    from hybridps.kvstore.gradient_arrays import MovedGradient, UsualSums
    from hybridps.kvstore.program_steps import ProgramSteps

    weight, gradient, slot = mx.nd.ones(4), mx.nd.zeros(4), mx.nd.zeros(4)
    autograd.mark_variables([weight], [gradient])
    moved, steps, pushed = MovedGradient(weight, gradient, slot), ProgramSteps(), []
    steps.begin(["first", "second"])
    steps.pushed["first"] = [mx.nd.zeros(4)]

    class Gradients:
        def push(self, name: str) -> None:
            pushed.append(name)
            raise InterruptedError

    sums = UsualSums(steps, Gradients())  # type: ignore[arg-type]
    sums.note(2, "second", moved)
    with pytest.raises(InterruptedError):
        sums.begin(2, [gradient], 0)
    assert pushed.pop() == "second"
    del steps.pushed["second"]
    moved.undo()
    assert not sums.begin(2, [gradient], 0)


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([name for name in SEEN if name not in ALIKE], id="most"),
        *(pytest.param([name], id=name, marks=pytest.mark.nightly) for name in SEEN),
    ],
)
def test_a_program_sees_what_it_sees_under_local(programs: list[str], tmp_path: Path) -> None:
    check_alone(programs, tmp_path)


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param(["plain", "weights_that_are_written", "frozen_and_thawed", "gradients_that_add_up"], id="some"),
        pytest.param(SEEN_WITH_AVERAGES, id="all", marks=pytest.mark.nightly),
    ],
)
def test_a_program_sees_the_weights_that_are_averaged_wherever_they_lie(programs: list[str], tmp_path: Path) -> None:
    check_alone(programs, tmp_path, STORE="dist_hybridps_elastic", HYBRIDPS_TAU="1", HYBRIDPS_ALPHA="0.3")
