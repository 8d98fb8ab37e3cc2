"""One Chrome trace of all processes of a run, for https://ui.perfetto.dev or chrome://tracing.

Each worker has rows for its steps, for loading data, for each gradient as backward finishes it, and for what its
communication thread does. Buckets are asynchronous slices, because several are under way at once. Each server has a row
for messages, and one for each thread that computes rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybridps.tracing.clocks import OneClock
from hybridps.tracing.reading import Interval, TracedServer, TracedStep, TracedWorker

Event = dict[str, Any]
"""An event of Chrome's "Trace Event Format". Times are whole microseconds, so that slices nest exactly."""

STEPS, LOADING, COMPUTE, COMMUNICATION = 1, 2, 3, 4
_ROWS = {STEPS: "steps", LOADING: "loading", COMPUTE: "compute", COMMUNICATION: "communication"}


def chrome_events(clock: OneClock) -> Iterator[Event]:
    """Yield the events of all processes. Time 0 is the earliest recorded time."""
    trace = clock.trace
    starts = [step.began for worker in trace.workers.values() for step in worker.steps]
    starts += [load.began for worker in trace.workers.values() for step in worker.steps for load in step.loading]
    starts += [work.time.began for server in trace.servers.values() for work in server.work]
    zero = min(starts, default=0.0)
    for number, worker in sorted(trace.workers.items()):
        yield from _name(number, f"worker {number} (group {worker.process.group})", _ROWS)
        for step in worker.steps:
            yield from _step(number, worker, step, zero)
    first = max(trace.workers, default=0) + 1
    for number, server in sorted(trace.servers.items()):
        yield from _server(first + number, server, zero)


def write_chrome_trace(clock: OneClock, path: Path) -> int:
    """Write the events to a JSON file, one per line, and return how many there are. Raises OSError."""
    count = 0
    with path.open("w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for event in chrome_events(clock):
            file.write((",\n" if count else "\n") + json.dumps(event))
            count += 1
        file.write("\n]}\n")
    return count


def _name(pid: int, name: str, rows: dict[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for tid, row in rows.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": row}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _slice(pid: int, tid: int, name: str, kind: str, time: Interval, zero: float, **args: Any) -> Event:
    began, ended = _at(time.began, zero), _at(time.ended, zero)
    at = {"ts": began, "dur": max(0, ended - began)}
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, **at, "args": args}


def _at(when: float, zero: float) -> int:
    return round(1e6 * (when - zero))


def _step(pid: int, worker: TracedWorker, step: TracedStep, zero: float) -> Iterator[Event]:
    of = {"step": step.number, "model": step.model}
    whole = Interval(step.began, step.time.ended)
    yield _slice(pid, STEPS, f"step {step.number}", "step", whole, zero, **of)
    for load in step.loading:
        yield _slice(pid, LOADING, "loading", "loading", load, zero, **of)
    before = step.first_gradient
    if step.arrived:
        backward = Interval(before, step.last_gradient)
        yield _slice(pid, COMPUTE, "backward", "backward", backward, zero, **of)
    for number, when in step.arrived:
        key = worker.keys.get(number)
        if key is not None:
            sizes = {"elements": key.elements, "bytes": key.nbytes}
            yield _slice(pid, COMPUTE, key.name, "gradient", Interval(before, when), zero, **of, **sizes)
        before = when
    for span in step.spans:
        key = worker.keys.get(span.key)
        args = {"from": key.name, "bytes": span.nbytes} if key is not None else {"bytes": span.nbytes}
        name = "wait for the group" if span.kind == "vote" else span.kind
        yield _slice(pid, COMMUNICATION, name, span.kind, span.time, zero, **of, **args)
    yield from _buckets(pid, worker, step, zero)


def _buckets(pid: int, worker: TracedWorker, step: TracedStep, zero: float) -> Iterator[Event]:
    """Yield each bucket from the beginning of its reduction to the end of its exchange."""
    begun = [span for span in step.spans if span.kind == "allreduce"]
    ended = [span for span in step.spans if span.kind == "exchange"]
    for number, (first, last) in enumerate(zip(begun, ended, strict=False)):
        key = worker.keys.get(first.key)
        name = f"bucket from {key.name}" if key is not None else f"bucket {number}"
        common = {"name": name, "cat": "bucket", "pid": pid, "tid": COMMUNICATION}
        common |= {"id2": {"local": f"{step.model}.{step.number}.{number}"}}
        args = {"step": step.number, "bytes": first.nbytes}
        yield {"ph": "b", "ts": _at(first.time.began, zero), "args": args, **common}
        yield {"ph": "e", "ts": _at(last.time.ended, zero), **common}


def _server(pid: int, server: TracedServer, zero: float) -> Iterator[Event]:
    rows = {0: "messages"} | {
        work.thread: f"rounds, thread {work.thread - 1}" for work in server.work if work.thread > 0
    }
    yield from _name(pid, f"server {server.number} ({server.address})", dict(sorted(rows.items())))
    for work in server.work:
        args = {"table": work.table, "chunk": work.chunk, "group": work.group}
        known = {name: value for name, value in args.items() if value not in ("", -1)}
        kind = "round" if work.kind == "round" else "message"
        yield _slice(pid, max(0, work.thread), work.kind, kind, work.time, zero, **known)
