"""Shows a run in progress: its workers, groups and servers, read from the status files in its live folder."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from hybridps.cli.top.table import PLAIN_WIDTH, Row, make_table, nbytes, number, printable
from hybridps.live import Live, ServerStatus, WorkerStatus, read_live
from hybridps.live.folder import other_runs
from hybridps.live.reading import Seen, clock, is_gone, rate, report_of, silent_seconds, steps_per_second
from hybridps.quantities import counted, duration

REFRESH_SECONDS = 1.0
MOST_PATH = 5000
"""The largest number of characters in a line that names a path."""

_WORKERS = (
    *(
        "WORKER",
        "GROUP",
        "HOST",
        "PID",
        "STEP",
        "STEPS/S",
        "STEP TIME",
        "PROGRAM",
        "COMPUTE",
        "WAITING",
        "COMMUNICATION",
    ),
    *("CPU", "EPOCH", "LOSS", "ACCURACY", "STATE"),
)
_SPARE_OF_WORKERS = (
    *("HOST", "PROGRAM", "COMPUTE", "COMMUNICATION", "LOSS", "CPU", "EPOCH", "STEP TIME", "ACCURACY", "PID"),
    "STEPS/S",
)
"""What a narrow terminal does not show, in this order."""
_GROUPS = (
    *("GROUP", "WORKERS", "STEP", "BEHIND", "EXCHANGES", "EXCHANGE", "DISTANCE", "SKIPPED", "SENT/S", "RECEIVED/S"),
    "STATE",
)
_SPARE_OF_GROUPS = ("DISTANCE", "SKIPPED", "RECEIVED/S", "EXCHANGE", "SENT/S", "EXCHANGES")
_SERVERS = ("SERVER", "HOST", "CPU", "GROUPS", "ROUNDS", "ROUNDS/S", "LAG", "IN/S", "OUT/S", "MEMORY", "STATE")
_SPARE_OF_SERVERS = ("HOST", "LAG", "ROUNDS", "GROUPS", "CPU", "MEMORY")


def watch(folder: Path, *, once: bool, is_newest: bool = False) -> None:
    """Show the run in a live folder until it ends or the user presses Ctrl-C. With `once`, and where the output does
    not go to a terminal, print it once and return. `is_newest`: other runs in progress are named below it.
    """
    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else PLAIN_WIDTH)

    def shown(before: Live, now: Live) -> Group:
        others = other_runs(folder) if is_newest else ()
        return page(before, now, console.width, others)

    with contextlib.suppress(KeyboardInterrupt):
        before = read_live(folder)
        if not before.is_over:
            time.sleep(REFRESH_SECONDS)  # rates need two readings
        now = read_live(folder)
        if once or not on_terminal:
            console.print(shown(before, now))
            return
        with Screen(shown(before, now), console=console, screen=True, auto_refresh=False) as screen:
            while not now.is_over:
                time.sleep(REFRESH_SECONDS)
                before, now = now, read_live(folder)
                screen.update(shown(before, now), refresh=True)
        console.print(shown(before, now))  # leaving the alternate screen erased what it showed


def page(before: Live, now: Live, width: int = PLAIN_WIDTH, others: Sequence[Path] = ()) -> Group:
    """Return what is known of the run `now`, with rates since the earlier reading `before`, in so many columns."""
    tables: list[Table | Text] = [
        make_table(_WORKERS, worker_rows(before, now), 3, width, _SPARE_OF_WORKERS),
        Text(),
        make_table(_GROUPS, group_rows(before, now), 1, width, _SPARE_OF_GROUPS),
    ]
    if now.servers:
        tables += [Text(), make_table(_SERVERS, server_rows(before, now), 2, width, _SPARE_OF_SERVERS)]
    said = now.launch.status.message if now.launch is not None else ""
    commands = [f"also in progress: hybridps top {shlex.quote(str(path))}" for path in others]
    also = [Text(printable(text, MOST_PATH), no_wrap=True, overflow="ignore") for text in commands]
    return Group(
        *map(Text, headlines(before, now)),
        Text(),
        *tables,
        *([Text(), Text(printable(said, PLAIN_WIDTH))] if said else []),
        *([Text(), *also] if also else []),
    )


def headlines(before: Live, now: Live) -> list[str]:
    """Return the lines above the tables: the algorithm, the number of processes, the progress, the command, and who
    started it.
    """
    workers = [seen.status for seen in now.workers.values()]
    expected = max((status.workers for status in workers), default=0)
    first = f"{len(workers)} of {expected} workers" if len(workers) < expected else counted(len(workers), "worker")
    words = [first, counted(len(now.groups), "group"), counted(len(now.servers), "server")]
    algorithms = {status.algorithm for status in workers if status.algorithm}
    launch = now.launch.status if now.launch is not None else None
    began = launch or min(workers, key=lambda status: status.started_at, default=None)
    if began is not None:
        words.append(f"up {clock(began.seconds)}")
    words += [f"step {now.steps}", f"{number(steps_per_second(before, now))} steps/s"]
    if now.is_over:
        failed = f"stopped by {printable(launch.signal)}" if launch and launch.signal else "ended with an error"
        words.append(failed if now.has_failed else "finished")
    elif not workers:
        words.append("no worker has started yet")
    lines = [", ".join([*sorted(algorithms), *words])]
    if launch is not None:
        where = f"started by process {launch.pid} on {launch.host}"
        folder = f", run folder {launch.run_folder}" if launch.run_folder else ""
        lines += [printable(" ".join(launch.command), PLAIN_WIDTH), printable(where + folder, PLAIN_WIDTH)]
    return lines


def worker_rows(before: Live, now: Live) -> list[Row]:
    """Return one row per worker."""
    return [_worker_row(before, now, seen) for _, seen in sorted(now.workers.items())]


def _worker_row(before: Live, now: Live, seen: Seen[WorkerStatus]) -> Row:
    status = seen.status
    earlier = before.workers.get(status.worker)
    then = None if earlier is None else earlier.status
    report = report_of(now, status.worker)
    cpu = rate(then, status, "cpu_seconds")
    return (
        str(status.worker),
        str(status.group),
        printable(status.host),
        "-" if status.ended or is_gone(status) else str(status.pid),
        str(status.steps),
        number(rate(then, status, "steps")),
        "-" if status.step_seconds is None else duration(status.step_seconds),
        *shares(status),
        "-" if cpu is None else f"{100 * cpu:.0f} %",
        "-" if report is None else f"{report.epoch:g}",
        "-" if report is None or report.loss is None else f"{report.loss:.4g}",
        "-" if report is None or report.accuracy is None else f"{100 * report.accuracy:.1f} %",
        state_of(seen, status.workers, now),
    )


def shares(status: WorkerStatus) -> Row:
    """Return the shares of a step: the program before the step, computing, waiting for workers, and communication.

    They are not known of a worker that does no steps.
    """
    step, own, program = status.step_seconds, status.own_seconds, status.program_seconds
    if not step or own is None or status.is_still:
        return ("-",) * 4
    own = min(own, step)  # medians need not add up
    program = None if program is None else min(program, own)
    waiting = min(status.waiting_seconds or 0.0, step - own)
    parts = program, own - (program or 0.0), waiting, step - own - waiting
    return tuple("-" if part is None else f"{100 * part / step:.0f} %" for part in parts)


def group_rows(before: Live, now: Live) -> list[Row]:
    """Return one row per group, with the figures of its leader."""
    rows: list[Row] = []
    for group, workers in now.groups.items():
        leader = workers[0]
        earlier = before.workers.get(leader.worker)
        then = None if earlier is None else earlier.status
        took = leader.exchange_seconds
        rows.append(
            (
                str(group),
                str(len(workers)),
                str(leader.steps),
                str(now.steps - leader.steps),
                str(leader.exchanges) if leader.exchanges else "-",
                "-" if took is None else duration(took),
                "-" if leader.distance is None else f"{leader.distance:.3g}",
                str(leader.skipped),
                nbytes(rate(then, leader, "bytes_to_servers")),
                nbytes(rate(then, leader, "bytes_from_servers")),
                group_state(now, group, workers),
            )
        )
    return rows


def server_rows(before: Live, now: Live) -> list[Row]:
    """Return one row per server."""
    return [_server_row(before, seen) for _, seen in sorted(now.servers.items())]


def _server_row(before: Live, seen: Seen[ServerStatus]) -> Row:
    status = seen.status
    earlier = before.servers.get(status.address)
    then = None if earlier is None else earlier.status
    cpu = rate(then, status, "cpu_seconds")
    state = state_of(seen, 1, None)
    return (
        printable(status.address),
        printable(status.host),
        "-" if cpu is None else f"{100 * cpu:.0f} %",
        str(status.groups),
        number(status.rounds),
        number(rate(then, status, "rounds")),
        number(status.lag),
        nbytes(rate(then, status, "received_bytes")),
        nbytes(rate(then, status, "sent_bytes")),
        nbytes(status.memory_bytes),
        f"{state}, restarted {_times(status.life)}" if status.life else state,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def state_of(seen: Seen[WorkerStatus] | Seen[ServerStatus], processes: int, now: Live | None) -> str:
    """Return the state of a process in words."""
    status = seen.status
    if status.ended:
        return "ended"
    if is_gone(status):
        return "gone"
    if silent := silent_seconds(seen, processes):
        return f"silent for {silent:.0f} s"
    if isinstance(status, WorkerStatus) and status.is_still:
        waits = f", waits: {printable(status.waits_for, PLAIN_WIDTH)}" if status.waits_for else ""
        return f"no step for {status.still_seconds:.0f} s{waits}"
    if isinstance(status, WorkerStatus) and status.slow is not None:
        return f"slow: takes {status.factor:.1f} times as long ({printable(status.slow)})"
    return "running"


def group_state(now: Live, group: int, workers: list[WorkerStatus]) -> str:
    """Return the state of a group in words: as its launcher reports it, or else as its workers show it."""
    launch = now.launch.status if now.launch is not None else None
    for each in launch.groups if launch is not None else ():
        if launch is not None and each.number == group and not (each.running and is_gone(launch)):
            again = f", restarted {_times(each.restarts)}" if each.restarts else ""
            if each.running:
                slow = launch.slow.get(group)
                return f"slow ({printable(slow)}){again}" if slow else f"running{again}"
            return f"ended{again}" if not each.status else f"lost: exit status {each.status}{again}"
    if all(status.ended for status in workers):
        return "ended"
    gone = [status.worker for status in workers if not status.ended and is_gone(status)]
    return f"lost: worker {', '.join(map(str, gone))}" if gone else "running"
