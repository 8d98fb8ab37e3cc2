"""Measurements of a machine and a network, as `hybridps oracle calibrate` writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from hybridps.errors import OracleError
from hybridps.oracle.machines.fit import Line
from hybridps.oracle.machines.machine import Level, Machine, checked
from hybridps.oracle.networks import Network
from hybridps.oracle.networks.files import write_json

FILE = "calibration.json"


class Pass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seconds of one iteration's computation."""

    forward_seconds: float
    backward_seconds: float
    update_seconds: float


class Layers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network in one process: each layer on its own (times in `network`), and the whole network with this batch."""

    network: Network
    batch_size: int
    whole: Pass
    weight_items: int
    """All items of the model, including those that are not trained, such as running statistics."""

    @property
    def residual(self) -> float:
        """(sum of the layers - whole network) / whole network, for forward and backward."""
        layers = sum(
            self.batch_size * ((layer.forward_seconds or 0.0) + (layer.backward_seconds or 0.0))
            for layer in self.network.layers
        )
        whole = self.whole.forward_seconds + self.whole.backward_seconds
        return (layers - whole) / whole


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seconds of a training step without communication while `copies` share the cores, as lines over images."""

    copies: int
    step: Line
    loader: Line


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operation of all workers as a function of its bytes.

    `loss`: the seconds of computation that a worker loses per second of the operation on its own.
    """

    cost: Line
    loss: float


class Communication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cost of summing gradients, and of averaging weights with the centre, for these workers and groups."""

    workers: int
    groups: int
    sum: Operation
    average: Operation | None = None


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All measurements of a machine. `hosts`: the hosts of `communications`; empty for this machine alone."""

    cores: int
    hosts: str
    steps: tuple[Steps, ...]
    communications: tuple[Communication, ...]
    layers: Layers
    copy_bytes_per_second: float
    add_bytes_per_second: float
    matrix_flops: float
    memory_bytes: int
    """The memory of the whole machine."""

    def steps_of(self, copies: int) -> Steps:
        """Return the steps with `copies` workers on the cores, extrapolated in proportion beyond the measured number.

        Raises OracleError if they were not measured and cannot be extrapolated.
        """
        known = {each.copies: each for each in self.steps}
        if copies in known:
            return known[copies]
        nearest = max((count for count in known if count < copies), default=0)
        if nearest < self.cores:
            raise OracleError(f"no steps of {copies} copies were measured, only of {_text(known)}: calibrate with them")
        return Steps(copies, *(line.scaled(copies / nearest) for line in (known[nearest].step, known[nearest].loader)))

    def communication_of(self, workers: int, groups: int) -> Communication:
        """Return the communication of a layout. Raises OracleError if it was not measured."""
        for each in self.communications:
            if (each.workers, each.groups) == (workers, groups):
                return each
        known = _text(f"{each.workers} in {each.groups}" for each in self.communications)
        raise OracleError(
            f"{workers} workers in {groups} groups were not measured, only {known}: "
            f"calibrate with --layouts {workers}x{groups}"
        )


def read_calibration(folder: Path) -> Calibration:
    """Read a calibration from its folder. Raises OracleError if there is none."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Calibration)
    except OSError as error:
        raise OracleError(f"{folder / FILE}: {error.strerror}; make it with `hybridps oracle calibrate`") from None
    except msgspec.DecodeError as error:
        raise OracleError(f"{folder / FILE} is not a calibration: {error}") from None


def write_calibration(calibration: Calibration, folder: Path) -> None:
    """Write the calibration and, beside it, the network with its layer times and the machine, for `predict`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(calibration, folder / FILE)
    write_json(calibration.layers.network, folder / "network.json")
    if any(each.groups == 1 < each.workers for each in calibration.communications):
        write_json(machine_measured(calibration), folder / "machine.json")


def machine_measured(calibration: Calibration) -> Machine:
    """Make the machine that `predict` needs. A PE is a worker, with its share of the memory.

    It has a level for each number of workers whose allreduce in one group was measured. For the measured T = a' + b' M,
    the equation T = 2 (p-1) (a + M b / p) gives a = a' / (2 (p-1)) and b = b' p / (2 (p-1)). The numbers of servers
    come from the layout with most groups, as if servers took all of its time. Raises OracleError if no allreduce was
    measured.
    """
    alone = {each.workers: each.sum.cost for each in calibration.communications if each.groups == 1 < each.workers}
    levels = [_level(workers, cost) for workers, cost in sorted(alone.items())]
    if not levels:
        raise OracleError("no layout of several workers in one group was measured: calibrate with --layouts 2x1")
    levels[-1] = msgspec.structs.replace(levels[-1], pes=None)
    apart = max(calibration.communications, key=lambda each: each.groups)
    cost, has_servers = apart.sum.cost, apart.groups > 1
    machine = Machine(
        name="calibrated",
        memory_bytes=calibration.memory_bytes / calibration.cores,
        speed_flops=calibration.matrix_flops,
        levels=tuple(levels),
        pes_per_node=calibration.cores,
        aggregate_bytes_per_second=calibration.add_bytes_per_second,
        server_bandwidth_bytes_per_second=apart.groups / cost.seconds_per_unit if has_servers else None,
        server_message_seconds=max(0.0, cost.start_seconds) / apart.groups if has_servers else 0.0,
    )
    return checked(machine)


def _level(pes: int, cost: Line) -> Level:
    messages = 2 * (pes - 1)
    return Level(
        name=f"{pes} workers",
        pes=pes,
        latency_seconds=max(0.0, cost.start_seconds) / messages,
        bandwidth_bytes_per_second=messages / (pes * cost.seconds_per_unit),
    )


def _text(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"
