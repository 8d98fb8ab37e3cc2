"""Machines as data: links by distance, memory and speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hybridps.errors import OracleError
from hybridps.oracle.networks.files import read_text, rows_of


class Link(NamedTuple):
    """The cost of a message: start-up time and time per byte, `a` and `b` of the equations.

    Collectives are rings (ParaDL, section "communication"), in which each PE sends p - 1 messages.
    """

    latency_seconds: float
    seconds_per_byte: float

    def message_seconds(self, message_bytes: float) -> float:
        """Return T_p2p = a + m b."""
        return self.latency_seconds + message_bytes * self.seconds_per_byte

    def allreduce_seconds(self, pes: int, message_bytes: float) -> float:
        """Return T_allreduce = 2 (p - 1) (a + m b / p) of a vector of m bytes."""
        return 2 * (pes - 1) * self.message_seconds(message_bytes / pes)

    def allgather_seconds(self, pes: int, message_bytes: float) -> float:
        """Return T_allgather = (p - 1) (a + m b), where m is the contribution of one PE."""
        return (pes - 1) * self.message_seconds(message_bytes)

    def shared(self, flows: float) -> Link:
        """Return the link as one of `flows` sees it that share the bandwidth equally."""
        return self._replace(seconds_per_byte=self.seconds_per_byte * flows)


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slowest link that a collective over up to `pes` PEs uses; without `pes`, over any number of PEs.

    `plx_crossings`: how often a message crosses between an accelerator and its host, in `latency_plx_us` each.
    """

    name: str
    latency_seconds: float
    bandwidth_bytes_per_second: float
    pes: int | None = None
    plx_crossings: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal processing elements (PEs) in nodes, and links by distance, nearest first.

    `contention` divides the bandwidth between nodes if all PEs of a node send at once (hybrid strategies). `staging` is
    the link within a node for messages that pass through the host's memory.

    The last three fields describe a server: the bandwidth of its host in each direction (by default that of the
    farthest level), the bytes that its kernels aggregate, and the time that it spends on each message. A number that is
    not given is no limit.
    """

    name: str
    memory_bytes: float
    speed_flops: float
    levels: tuple[Level, ...]
    pes_per_node: int = 1
    max_pes: int | None = None
    latency_plx_us: float = 0.0
    contention: float | None = None
    staging: Level | None = None
    server_bandwidth_bytes_per_second: float | None = None
    aggregate_bytes_per_second: float | None = None
    server_message_seconds: float = 0.0

    def link(self, pes: int) -> Link:
        """Return the link of a collective over `pes` PEs. Raises OracleError beyond the last level."""
        for level in self.levels:
            if level.pes is None or pes <= level.pes:
                return self.link_of(level)
        raise OracleError(
            f"{self.name} has no link for {pes} PEs: its last level ends at {self.levels[-1].pes}; "
            "leave `pes` of the last level out for any number"
        )

    def link_of(self, level: Level) -> Link:
        latency = level.latency_seconds + level.plx_crossings * 1e-6 * self.latency_plx_us
        return Link(latency, 1 / level.bandwidth_bytes_per_second)


ABCI = Machine(
    name="ABCI",
    memory_bytes=16e9,
    speed_flops=7.8e12,
    pes_per_node=4,
    max_pes=4096,
    latency_plx_us=15.0,
    levels=(
        Level(name="NVLink in a node", pes=4, latency_seconds=9e-6, bandwidth_bytes_per_second=50e9),
        Level(name="leaf switch", pes=68, latency_seconds=310e-9, bandwidth_bytes_per_second=12.5e9, plx_crossings=2),
        Level(name="rack", pes=136, latency_seconds=490e-9, bandwidth_bytes_per_second=12.5e9, plx_crossings=2),
        Level(name="spine switch", latency_seconds=980e-9, bandwidth_bytes_per_second=12.5e9, plx_crossings=2),
    ),
    staging=Level(name="host memory", latency_seconds=3e-3 + 110e-9, bandwidth_bytes_per_second=16e9),
)
"""The machine of the ParaDL paper, with the numbers of its authors' program: 2 (L_plx + 110 ns), 90 ns a switch."""

MACHINES = {"abci": ABCI}


def machine_of(name: str) -> Machine:
    """Return a built-in machine by name, or the machine of a file: JSON of `Machine`, or a published `.plat`.

    Raises OracleError for an unknown name and for a file that is no machine.
    """
    if name.lower() in MACHINES:
        return MACHINES[name.lower()]
    path = Path(name)
    if path.suffix and not path.is_file():
        raise OracleError(f"there is no file {path}: `hybridps oracle calibrate` writes one for your hosts")
    if not path.is_file():
        raise OracleError(f"unknown machine {name!r}: use one of {', '.join(MACHINES)}, or a JSON or .plat file")
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return _plat(text, path)
    try:
        return checked(msgspec.json.decode(text, type=Machine))
    except msgspec.DecodeError as error:
        raise OracleError(f"{path} is not a machine: {error}") from None


def with_settings(machine: Machine, settings: dict[str, float]) -> Machine:
    """Return the machine with some numbers replaced. Raises OracleError for names that are not in `SETTINGS`."""
    for name in settings:
        if name not in SETTINGS:
            raise OracleError(f"unknown setting {name!r} of a machine: use one of {', '.join(SETTINGS)}")
    changed: dict[str, Any] = {
        name: int(value) if name in ("pes_per_node", "max_pes") else value for name, value in settings.items()
    }
    return checked(msgspec.structs.replace(machine, **changed)) if settings else machine


MAY_BE_ZERO = ("latency_seconds", "plx_crossings", "latency_plx_us", "server_message_seconds")
SETTINGS = tuple(name for name in Machine.__struct_fields__ if name not in ("name", "levels", "staging"))


def checked(machine: Machine) -> Machine:
    """Return the machine. Raises OracleError for an impossible number."""
    if not machine.levels:
        raise OracleError(f"{machine.name} has no levels: give at least one link")
    _check_numbers(machine)
    for level in (*machine.levels, *([machine.staging] if machine.staging else [])):
        _check_numbers(level)
    reaches = [float("inf") if level.pes is None else level.pes for level in machine.levels]
    if reaches != sorted(set(reaches)):
        raise OracleError(f"the levels of {machine.name} reach {reaches} PEs: order them from near to far")
    return machine


def _check_numbers(data: Machine | Level) -> None:
    for name, value in msgspec.structs.asdict(data).items():
        least = "0 or more" if name in MAY_BE_ZERO else "above 0"
        if isinstance(value, (int, float)) and not (value > 0 or (value == 0 and name in MAY_BE_ZERO)):
            raise OracleError(f"{name} of {data.name!r} is {value:g}: it must be {least}")


def _plat(text: str, path: Path) -> Machine:
    """Read a `.plat` file of the ParaDL authors: lines NAME|number|unit, and one link for all distances."""
    try:
        numbers = {cells[0]: float(cells[1]) for _, cells in rows_of(text, str(path))}
        latency, bandwidth = numbers["LATENCY"], numbers["BANDWIDTH"]
        machine = Machine(
            name=path.stem,
            memory_bytes=numbers["MEM_PER_NODE"],
            speed_flops=numbers["NODE_SPEED"],
            pes_per_node=int(numbers["GPU_PER_NODE"]),
            max_pes=int(numbers["MAX_NODE"]),
            levels=(Level(name="network", latency_seconds=latency, bandwidth_bytes_per_second=bandwidth),),
            latency_plx_us=ABCI.latency_plx_us,
        )
    except (IndexError, ValueError) as error:
        raise OracleError(f"{path} is not a platform file: {error}") from None
    except KeyError as error:
        raise OracleError(f"{path} is not a platform file: it has no line {error.args[0]}|number|unit") from None
    return checked(machine)
