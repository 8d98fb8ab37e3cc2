"""Runs the trials of a comparison in turn, and keeps those that a folder already has."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from hybridps.cli.compare.contenders import expected_settings
from hybridps.cli.compare.plan import Comparison, Trial, trial_command
from hybridps.cli.compare.witness import stores_made
from hybridps.cli.run.mpirun import rank_environment, root_environment
from hybridps.errors import ConfigError, HybridPSError
from hybridps.events import Configured, Noted
from hybridps.links import Links, limited_links
from hybridps.processes import STOP_SECONDS, die_with_parent, without_rank_marks
from hybridps.report import Run, read_run

RESULT = "result.json"
OUTPUT = "output.log"
LAUNCHER_EVENTS = "hybridps-launcher.jsonl"
FINISHED, ENDED, FAILED = "finished", "ended by the budget", "failed"

_POLL_SECONDS = 0.5
_INTERRUPTED = "it was interrupted"
_TAIL = 3
"""The number of lines of the output that explain why a trial failed."""


class Result(msgspec.Struct, frozen=True):
    """How a trial ended."""

    outcome: str
    """`FINISHED`, `ENDED` or `FAILED`."""
    reason: str
    """Why it failed; empty if it did not."""
    status: int
    seconds: float
    fingerprint: str
    link_bytes: list[tuple[float, int]] = []
    """Seconds since 1970, and the bytes sent over the links by then, headers included; empty without links."""


def kept_result(trial: Trial, mark: str) -> Result | None:
    """Return the result of a trial that was run before; None if there is none or it failed, so that it runs again.

    `mark`: the trial's fingerprint. Raises ConfigError if the folder has a trial that was run differently, or other
    files, which a run would remove.
    """
    try:
        result = msgspec.json.decode((trial.folder / RESULT).read_bytes(), type=Result)
    except (FileNotFoundError, msgspec.DecodeError):
        _check_removable(trial.folder)
        return None
    if result.outcome == FAILED:
        return None
    if result.fingerprint != mark:
        raise ConfigError(
            f"{trial.folder} has a run of another command or script, or with other options or settings: choose another "
            "--out, or remove it"
        )
    return result


def _check_removable(folder: Path) -> None:
    """Raise ConfigError if a folder without a result has files that are not from a run."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    # A result is empty if its writer was killed, or if the disk was full.
    is_cut_off = RESULT in names and names <= {RESULT, OUTPUT} and not (folder / RESULT).stat().st_size
    if names and LAUNCHER_EVENTS not in names and not is_cut_off:
        raise ConfigError(f"{folder} has files that are not from a run: choose another --out")


def run_trial(comparison: Comparison, trial: Trial, mark: str, interrupted: Callable[[], bool]) -> Result:
    """Run a trial from the beginning, and write its result. Once `interrupted` is true, it is ended, and has failed."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    trial.folder.mkdir(parents=True)
    _write(trial, Result(FAILED, _INTERRUPTED, 0, 0.0, mark))
    try:
        result = _run_anew(comparison, trial, mark, interrupted)
    except HybridPSError as error:
        result = Result(FAILED, str(error), error.status, 0.0, mark)
    _write(trial, result)
    return result


def _write(trial: Trial, result: Result) -> None:
    (trial.folder / RESULT).write_bytes(msgspec.json.encode(result) + b"\n")


def _run_anew(comparison: Comparison, trial: Trial, mark: str, interrupted: Callable[[], bool]) -> Result:
    with ExitStack() as stack:
        links, environ = None, _environment(comparison)
        if comparison.link:
            links = stack.enter_context(limited_links(comparison.groups, comparison.link))
            environ |= links.variables(Path(links.folder)) | {"TMPDIR": links.folder}
        began = time.monotonic()
        status, in_time, crossed = _run(comparison, trial, links, environ, interrupted)
        seconds = time.monotonic() - began
    reason = _INTERRUPTED if interrupted() and not in_time else _why_failed(trial, status if in_time else 0)
    outcome = FAILED if reason else FINISHED if in_time else ENDED
    return Result(outcome, reason, status, round(seconds, 3), mark, crossed)


def _environment(comparison: Comparison) -> dict[str, str]:
    """Return an environment that gives the workers of all contenders the same share of the cores, on any nodes."""
    environ, workers = without_rank_marks(os.environ) | root_environment(), comparison.workers
    cores = len(os.sched_getaffinity(0))
    return environ | rank_environment(environ, cores, workers, workers + (comparison.servers or 1))


def _run(
    comparison: Comparison,
    trial: Trial,
    links: Links | None,
    environ: dict[str, str],
    interrupted: Callable[[], bool],
) -> tuple[int, bool, list[tuple[float, int]]]:
    """Return the exit status, whether the trial ended by itself, and how many bytes had crossed the links by when."""
    end = time.monotonic() + (comparison.budget_seconds or float("inf"))
    crossed: list[tuple[float, int]] = []
    with (trial.folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            trial_command(comparison, trial, links),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
        )
        try:
            while process.poll() is None and time.monotonic() < end and not interrupted():
                if links:
                    crossed.append((time.time(), links.nbytes()))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
            in_time = process.returncode is not None
            if links:
                crossed.append((time.time(), links.nbytes()))
        finally:
            _stop(process)
    return process.returncode, in_time, crossed


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the launcher if it still runs. It stops its servers and groups, and may take as long as they do."""
    process.terminate()
    try:
        process.wait(3 * STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _why_failed(trial: Trial, status: int) -> str:
    """Return why a trial that ended by itself does not count; empty if it counts."""
    try:
        misused = _misused(trial, read_run(trial.folder))
    except HybridPSError as error:
        misused = str(error)
    if status and not (misused and trial.contender.is_native):
        lines = (trial.folder / OUTPUT).read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        return f"exit status {status}: " + " / ".join(errors[-_TAIL:])
    return misused


def _misused(trial: Trial, run: Run) -> str:
    """Return a text if the script trained with another store or algorithm than the contender's; empty if not."""
    contender, is_ours = trial.contender, any(rank.events for rank in run.ranks)
    if not contender.is_native:
        if not is_ours:
            return "the script created no hybridps store: make it create the KVStore dist_hybridps"
        expected = expected_settings(contender)
        trained = _trained(run, expected)
        if trained != expected:
            return f"the script trained with {_words(trained)}, not {_words(expected)}"
        return _without_wire(run) if contender.wire else ""
    wanted = f"not {contender.kvstore}: make it read the type from COMPARE_KVSTORE, or put {{kvstore}} into its command"
    if is_ours:
        return f"the script created a hybridps store, {wanted}"
    others = stores_made(trial.folder) - {f"the store {contender.kvstore}"}
    return f"the script created {' and '.join(sorted(others))}, {wanted}" if others else ""


def _trained(run: Run, names: Iterable[str]) -> dict[str, str | None]:
    """Return these settings, such as the algorithm, as the ranks had them."""
    settings = next(event.settings for event in run.last(Configured))
    return {name: settings.get(name) for name in names}


def _without_wire(run: Run) -> str:
    """Return what the ranks say if the script trains in a way in which nothing is rounded; else an empty text."""
    notes = (event.message for rank in run.ranks for event in rank.events if isinstance(event, Noted))
    return next((note for note in notes if note.startswith("HYBRIDPS_WIRE=")), "")


def _words(settings: Mapping[str, str | None]) -> str:
    """
    >>> _words({"algorithm": "elastic", "trigger": None})
    'the algorithm elastic'
    """
    return " and ".join(f"the {name} {value}" for name, value in settings.items() if value) or "no algorithm"
