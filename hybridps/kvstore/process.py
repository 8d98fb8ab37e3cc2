"""The job of this process. MXNet creates a store from its name alone, so the process keeps one job for all."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType

import mxnet as mx

from hybridps.config import mxnet_engine
from hybridps.errors import ConfigError
from hybridps.job import Job, open_job
from hybridps.kvstore.communicator import Communicator
from hybridps.kvstore.ps_lite import MXNetStores
from hybridps.mpi_groups import end_group


class Held:
    """What the process holds once a store was created."""

    def __init__(self) -> None:
        self.job = open_job(stores={"mxnet": MXNetStores()})
        self.communicator = Communicator()
        self.before_waiting: list[Callable[[], None]] = []
        """Called before all operations under way are waited for."""
        self.pid = os.getpid()

    def finish(self) -> None:
        """Wait for all operations under way."""
        for call in self.before_waiting:
            call()
        mx.nd.waitall()


_held: Held | None = None


def hold() -> Held:
    """The job of this process, joined at the first call, and its communicator.

    From then on an exception that nobody handles ends the group, and the end of the process ends its
    part in the job. Raises ConfigError where MXNet's engine cannot run operations beside the program.
    """
    global _held
    if _held is None:
        if mxnet_engine() == "NaiveEngine":
            raise ConfigError(
                "MXNET_ENGINE_TYPE=NaiveEngine runs one operation after the other, and so would wait for ever: unset it"
            )
        _held = Held()
        sys.excepthook = _on_uncaught
        atexit.register(release)
        # MXNet waits for its engine at a fork while Python is held, and the engine may wait for Python.
        os.register_at_fork(before=_before_fork)
    return _held


def _before_fork() -> None:
    if _held is not None and _held.pid == os.getpid():
        _held.finish()


def release() -> Job | None:
    """End this process's part in the job: finish what is under way, and leave. The job, if there was one."""
    global _held
    if _held is None or _held.pid != os.getpid():
        return None
    held, _held = _held, None
    held.finish()
    held.communicator.stop()
    held.job.close()
    return held.job


def _on_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    end_group(error)
