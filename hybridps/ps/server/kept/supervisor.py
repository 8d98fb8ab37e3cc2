"""Starts a server again when its process dies. The new process is forked, so that nothing has to be imported again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn

from hybridps.errors import FAILED, MISUSED, HybridPSError
from hybridps.processes import die_with_parent
from hybridps.ps.server.kept.memory import KeptMemory

_FAILED_STARTS = 3
"""A server that dies so many times in a row before it serves would do so forever."""


def supervise(serve_life: Callable[[KeptMemory], int], restarts: int, say: Callable[[str], None]) -> int:
    """Run `serve_life` in a child process, and again in a new one when that dies. Returns the last exit status.

    Each child opens the same kept memory, and notes there when it serves. It ends with the result of `serve_life`, or
    with `MISUSED` and a line of output if `serve_life` raises HybridPSError. A child that is killed by a signal, or
    ends with a status other than 0 and `MISUSED`, is followed by a new one, up to `restarts` times, unless three in a
    row died before they served. `say` is called with a line each time.

    SIGTERM, SIGINT and SIGHUP (unless it is ignored, as under `nohup`) are passed on to the child; then nothing is
    started again. The child ends when this process ends. The status is that of a shell: 128 + n for signal n.

    Call it in the main thread, before there is another thread or a ZeroMQ context. Children inherit what was imported.
    """
    stops = {signal.SIGTERM, signal.SIGINT}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stops.add(signal.SIGHUP)
    # Ignored signals cannot be waited for: the end of a child, or SIGINT, which a shell ignores in the background.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # Signals are waited for, not handled, so that none is lost between two children.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*stops, signal.SIGCHLD})
    memory = KeptMemory.create()
    failed_starts = lives = 0
    try:
        while True:
            child = _fork(serve_life, memory, before, say)
            code, stopped = _wait(child, stops)
            failed_starts = 0 if KeptMemory.last_serving_life(memory) == lives else failed_starts + 1
            status = 128 - code if code < 0 else code
            if stopped or status in (0, MISUSED):
                return status
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
            if failed_starts == _FAILED_STARTS:
                say(f"the server {how}; {failed_starts} processes in a row ended before they served: not started again")
                return status
            if lives == restarts:
                say(f"the server {how}; no restarts are left")
                return status
            lives += 1
            say(f"the server {how}; restarted, {lives} of {restarts}; its tables are kept")
    finally:
        os.close(memory)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(
    serve_life: Callable[[KeptMemory], int],
    memory: int,
    signals: Iterable[int],
    say: Callable[[str], None],
) -> int:
    """Start a child with this signal mask. Returns its process id."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()  # buffered output would be written twice
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent=parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        _live(serve_life, memory, say)
    return child


def _live(serve_life: Callable[[KeptMemory], int], memory: int, say: Callable[[str], None]) -> NoReturn:
    """Run a child. It never returns to the parent's caller."""
    status = FAILED
    try:
        status = serve_life(KeptMemory(memory))
    except HybridPSError as error:
        say(f"error: {error}")
        status = MISUSED
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)


def _wait(child: int, stops: set[signal.Signals]) -> tuple[int, bool]:
    """Wait for the end of the child, and pass signals on to it.

    Returns its exit code, which is negative for a signal, and whether a signal was passed on.
    """
    stopped = False
    while True:
        # If several are pending, the lowest number comes first, so the end of a child comes last.
        number = signal.sigwait({*stops, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            stopped = True
            os.kill(child, number)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), stopped
