"""The end of a rank: mpirun has read its last output, and learns how it ended.

Also a program of its own, run as a file so that it loads nothing else:

    rank_end.py COMMAND...

It runs the command as a rank of MPICH or Intel MPI, and then prints how the rank ended (`SAYS`), because their mpirun
reports the ranks that it has killed itself in place of the first one, or reports none. Exits with the same status.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

SAYS = "hybridps: rank {} ended with status {}"
"""What is printed: the rank, and its exit status as a shell counts it, 128 + n for signal n."""

READ_SECONDS = 1.0
"""How long to wait for a reader, which may be paused."""

_PASSED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mpirun sends to all processes of a rank."""
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None)


def wait_for_reader(seconds: float = READ_SECONDS) -> None:
    """Wait until what this process has written to pipes on standard output and standard error has been read.

    mpirun of MPICH kills a rank that ends its world, and loses what it has not read by then.
    """
    end = time.monotonic() + seconds
    while any(map(_unread, (1, 2))) and time.monotonic() < end:
        time.sleep(0.001)


def end_world(abort: Callable[[int], object], status: int) -> None:
    """End all ranks of this process's MPI world by calling `MPI_Abort`, given as `abort`, with this exit status.

    MPICH's calls `exit`. This makes `exit` end the process at once, as `_exit` does, because the destructors of MXNet
    may otherwise end it by SIGABRT.
    """
    with suppress(AttributeError):  # only glibc has it
        _libc.on_exit(ctypes.cast(_libc._exit, ctypes.c_void_p), None)
    abort(status)


def _unread(file: int) -> int:
    """Return the number of bytes in a pipe that nobody has read yet; 0 for anything else."""
    try:
        if not stat.S_ISFIFO(os.fstat(file).st_mode):
            return 0
        return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:  # it was closed
        return 0


def _main(*command: str) -> None:
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)
    pid = os.fork()
    if pid == 0:
        _become(command, parent)
    stopped = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    for number in _PASSED:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = code if code >= 0 else 128 - code
    if code != -signal.SIGTERM or signal.SIGTERM not in stopped:  # else mpirun ended it, because of another rank
        with suppress(OSError):  # nobody reads it
            os.write(1, f"{SAYS.format(os.environ.get('PMI_RANK', '?'), status)}\n".encode())
        wait_for_reader()
    os._exit(status)


def _become(command: tuple[str, ...], parent: int) -> NoReturn:
    """Become the rank's program, which ends with its parent. Exit with status 127, as a shell does, if that fails."""
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # Python has changed these
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"hybridps: error: {command[0]} cannot be started: {error.strerror}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    _main(*sys.argv[1:])
