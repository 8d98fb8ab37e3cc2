"""The job of this process. MXNet creates a store from its name alone, so the process keeps one job for all."""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

import mxnet as mx

from hybridps.job import Job, open_job
from hybridps.kvstore.communicator import Communicator
from hybridps.mpi_groups import end_group


class _Held:
    """What the process holds once a store was created."""

    def __init__(self) -> None:
        self.job = open_job()
        self.communicator = Communicator()
        self.pid = os.getpid()


_held: _Held | None = None


def hold() -> tuple[Job, Communicator]:
    """The job of this process, joined at the first call, and its communicator.

    From then on an exception that nobody handles ends the group, and the end of the process ends its
    part in the job.
    """
    global _held
    if _held is None:
        _held = _Held()
        sys.excepthook = _on_uncaught
        atexit.register(release)
    return _held.job, _held.communicator


def release() -> Job | None:
    """End this process's part in the job: finish what is under way, and leave. The job, if there was one."""
    global _held
    if _held is None or _held.pid != os.getpid():
        return None
    held, _held = _held, None
    mx.nd.waitall()
    held.communicator.stop()
    held.job.close()
    return held.job


def _on_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    end_group(error)
