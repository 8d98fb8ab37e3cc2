"""Reads the trace files of a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from hybridps.errors import HybridPSError
from hybridps.tracing.records import AnyLine, Keys, Probe, Process, Served, Step

SERVERS = "servers-"
"""The beginning of the names of files about servers. The number of the worker that wrote them follows."""


class Key(NamedTuple):
    """A key of a worker."""

    table: str
    name: str
    elements: int
    nbytes: int


class Interval(NamedTuple):
    """The time from `began` to `ended`, in seconds."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def within(self, began: float, ended: float) -> float:
        """Return how many of its seconds lie between two times."""
        return max(0.0, min(self.ended, ended) - max(self.began, began))


class Communication(NamedTuple):
    """What the communication thread of a worker did; see `Span`. Times are in seconds."""

    kind: str
    time: Interval
    key: int
    nbytes: int


@dataclass(frozen=True)
class TracedStep:
    """A step of a worker. Times are in seconds, on the worker's clock until `on_one_clock`."""

    number: int
    model: int
    time: Interval
    """From its first key to its last sum."""
    began: float
    """When the previous step ended. A gradient may have been computed earlier, because sums are released one by one."""
    arrived: tuple[tuple[int, float], ...]
    """The numbers of keys, and when their gradients had been computed, the earliest first."""
    spans: tuple[Communication, ...]
    loading: tuple[Interval, ...]
    program_seconds: float = 0.0
    """From when the script began the step before to when it began this one, without waits for sums."""
    computes_before: bool = False
    """Whether the script computes the gradients before it begins the step."""

    @property
    def last_gradient(self) -> float:
        return self.arrived[-1][1] if self.arrived else self.time.began

    @property
    def first_gradient(self) -> float:
        return self.arrived[0][1] if self.arrived else self.time.began


@dataclass
class TracedWorker:
    """A worker, in its last life."""

    process: Process
    keys: dict[int, Key] = field(default_factory=dict)
    steps: list[TracedStep] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"worker {self.process.worker}"


class ServerWork(NamedTuple):
    """What a server did for the job: a message that it handled, or the round of a chunk. See `Served`."""

    kind: str
    table: str
    chunk: int
    group: int
    thread: int
    request: int
    time: Interval


@dataclass
class TracedServer:
    """A server, according to the records that the leader of the first group has read."""

    number: int
    address: str
    work: list[ServerWork] = field(default_factory=list)
    missing: int = 0

    @property
    def name(self) -> str:
        return f"server {self.number}"


class ClockProbe(NamedTuple):
    """A message of a leader to a server and back, with times of the worker's clock."""

    worker: int
    server: int
    request: int
    time: Interval


@dataclass
class Trace:
    """What all processes of a run have recorded."""

    workers: dict[int, TracedWorker] = field(default_factory=dict)
    servers: dict[int, TracedServer] = field(default_factory=dict)
    probes: list[ClockProbe] = field(default_factory=list)

    @property
    def has_servers(self) -> bool:
        """Whether the job has servers, as far as the trace shows.

        MXNet's servers write no trace, so several groups also count as a sign of servers.
        """
        return bool(self.servers or self.probes) or len({worker.process.group for worker in self.workers.values()}) > 1

    def __bool__(self) -> bool:
        return any(worker.steps for worker in self.workers.values())


def read_trace(folder: Path, launch: str | None = None) -> Trace:
    """Return the trace of a run; it is false if there is none. Lines that a killed process left incomplete are skipped.

    For a worker that was restarted, its last life counts. `launch`: the id of the launch; files of other launches,
    which an earlier run has left, do not count. Raises HybridPSError for files that cannot be read.
    """
    trace = Trace()
    for path in sorted(folder.glob("trace-*.jsonl")):
        name = path.name.removeprefix("trace-").removesuffix(".jsonl")
        if name.endswith(".older"):
            continue
        lines = [*_lines(path.with_name(f"trace-{name}.older.jsonl")), *_lines(path)]
        if name.removeprefix(SERVERS).isdecimal() and name.startswith(SERVERS):
            _add_servers(trace, _last_life(lines, launch))
        elif name.isdecimal():
            worker = _worker(_last_life(lines, launch))
            if worker is not None:
                trace.workers[worker.process.worker] = worker
    return trace


def _lines(path: Path) -> Iterator[AnyLine]:
    decoder = msgspec.json.Decoder(AnyLine)
    try:
        text = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise HybridPSError(f"{path} cannot be read: {error.strerror}") from None
    for line in text.splitlines():
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError:
            continue


def _last_life(lines: list[AnyLine], launch: str | None) -> list[AnyLine]:
    """Return the lines of the last process, or none if it is of another launch. Each file begins with its process."""
    last = max((place for place, line in enumerate(lines) if isinstance(line, Process)), default=0)
    process = lines[last] if lines else None
    if not isinstance(process, Process) or (launch and process.launch and process.launch != launch):
        return []
    while (before := _process_before(lines, last)) is not None:
        last = before
    return lines[last:]


def _process_before(lines: list[AnyLine], place: int) -> int | None:
    """Return the place of the same process above, if the older file has lines of it too; otherwise None."""
    for before in range(place - 1, -1, -1):
        if isinstance(lines[before], Process):
            return before if lines[before] == lines[place] else None
    return None


def _worker(lines: list[AnyLine]) -> TracedWorker | None:
    worker: TracedWorker | None = None
    for line in lines:
        if isinstance(line, Process):
            worker = worker or TracedWorker(line)
        elif isinstance(line, Keys) and worker is not None:
            described = zip(line.names, line.elements, line.nbytes, strict=False)
            worker.keys |= {line.first + number: Key(line.table, *each) for number, each in enumerate(described)}
        elif isinstance(line, Step) and worker is not None:
            before = worker.steps[-1].time.ended if worker.steps else None
            worker.steps.append(_step(line, worker.process.base, before))
    return worker


def _step(line: Step, base: float, before: float | None) -> TracedStep:
    def seconds(began: int, ended: int) -> Interval:
        return Interval(base + 1e-6 * began, base + 1e-6 * ended)

    arrived = sorted(((key, base + 1e-6 * when) for key, when in line.arrived), key=lambda each: each[1])
    spans = [Communication(each.kind, seconds(each.began, each.ended), each.key, each.nbytes) for each in line.spans]
    time = seconds(line.began, line.ended)
    began = min([time.began, *(when for _, when in arrived[:1])]) if before is None else before
    loading = tuple(seconds(*each) for each in line.loading)
    of_program = 1e-6 * line.program, line.computes_before
    return TracedStep(line.number, line.model, time, began, tuple(arrived), tuple(spans), loading, *of_program)


def _add_servers(trace: Trace, lines: list[AnyLine]) -> None:
    process = next((line for line in lines if isinstance(line, Process)), None)
    for line in lines if process is not None else ():
        if isinstance(line, Probe) and process is not None:
            time = Interval(process.base + 1e-6 * line.began, process.base + 1e-6 * line.ended)
            trace.probes.append(ClockProbe(process.worker, line.server, line.request, time))
        elif isinstance(line, Served):
            server = trace.servers.setdefault(line.server, TracedServer(line.server, line.address))
            server.missing += line.missing
            server.work += _work(line)


def _work(line: Served) -> Iterator[ServerWork]:
    columns = (line.kind, line.table, line.chunk, line.group, line.thread, line.request, line.began, line.took)
    for kind, table, chunk, group, thread, request, began, took in zip(*columns, strict=False):
        if max(kind, table) < len(line.names):
            time = Interval(1e-6 * began, 1e-6 * (began + took))
            yield ServerWork(line.names[kind], line.names[table], chunk, group, thread, request, time)
