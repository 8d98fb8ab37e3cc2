"""The job of this process. MXNet creates a store from its name alone, so all stores of a process share one job."""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref

import mxnet as mx

from hybridps import progress
from hybridps.errors import ConfigError, DeadlineError, LayoutError, ServerError
from hybridps.events import Evaluated, say
from hybridps.job import Job, open_job
from hybridps.kvstore.ps_lite import MXNetStores
from hybridps.kvstore.servers import ServersProfile
from hybridps.kvstore.training import Training
from hybridps.mpi_groups import end_group
from hybridps.step import DisagreementError, JobContext, Schedule
from hybridps.tensor_collectives import Levels

OF_ALL_RANKS = (DeadlineError, DisagreementError, LayoutError, ServerError)
"""Errors that all ranks of a group raise on their communication threads."""

REPORT_SECONDS = 5.0
"""How long the other ranks of a group wait for the leader to report an error that all of them have."""

WAITS = {
    mx.ndarray.ndarray.__file__: {"waitall", "wait_to_read", "asnumpy", "to_dlpack_for_write", "_sync_copyfrom"},
    mx.ndarray.utils.__file__: {"save"},
    mx.ndarray.sparse.__file__: {"_csr_matrix_from_definition", "_row_sparse_ndarray_from_definition"},
}
"""By file: MXNet's functions that wait for arrays. Every wait of Python for an array passes through one of them."""


def waits_for_mxnet(thread: int) -> bool:
    """Return whether the thread with this identity is in a function of MXNet that waits for an array."""
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_name in WAITS.get(frame.f_code.co_filename, ())


class SharedJob:
    """The job and the schedule that all stores of the process share."""

    def __init__(self, algorithm: str | None) -> None:
        self.job = open_job(stores={"mxnet": MXNetStores()}, algorithm=algorithm)
        self.trainings: weakref.WeakSet[Training] = weakref.WeakSet()
        self.is_used = False
        """Whether any store was given a key, or had no epoch left to train."""
        self.pid = os.getpid()
        self._told_unused = False
        """Whether the user was told that no store is used."""
        progress.listeners.append(self._note_report)
        self._schedule: Schedule | None = None
        self._profile: ServersProfile | None = None

    def schedule(self, levels: Levels) -> Schedule:
        """Return the schedule of all stores. `levels`: those of the first store, for the votes of its group."""
        if self._schedule is None:
            self._schedule = Schedule(levels, JobContext.of(self.job.session), waits_for_mxnet, self._end)
        return self._schedule

    def profile(self, schedule: Schedule) -> ServersProfile:
        """Return the profile of the servers, which all stores share."""
        if self._profile is None:
            self._profile = ServersProfile(self.job, schedule)
        return self._profile

    def finish(self) -> None:
        """Wait for all operations under way."""
        for training in list(self.trainings):
            training.settle()
        mx.nd.waitall()

    def close(self) -> None:
        """Finish, and leave the job. If an operation failed and no script read its result, this prints a line.

        MXNet is silent then. The process ends as with MXNet's own stores, because other ranks wait for this one.
        """
        try:
            self.finish()
        except mx.MXNetError as error:
            why = str(error).rpartition("\n")[2]
            told = f"an operation of MXNet failed on worker {self.job.worker}, and the script has not read its result"
            say(f"{told}: {why}")
        progress.listeners.remove(self._note_report)
        self._tell_if_unused()
        try:
            if self._profile is not None:
                self._profile.close()
        finally:
            if self._schedule is not None:
                self._schedule.close()
            self.job.close()

    def _note_report(self, event: Evaluated) -> None:
        if event.epoch > 0:
            self._tell_if_unused()

    def _tell_if_unused(self) -> None:
        """Tell the user once if no store is used, at the first epoch that the script reports or else at its end."""
        if self.is_used or self._told_unused or self.job.workers == 1 or self.job.worker != 0:
            return
        self._told_unused = True
        self.job.session.note(
            "the KVStore of this script was given no weights: either the script did no step, perhaps because it has "
            "fewer images than a batch, or each worker has trained by itself, because the store was not passed to the "
            "Trainer (kvstore=kv) or to Module.fit"
        )

    def _end(self, error: BaseException) -> None:
        """End the group: the main thread may wait in the engine for something that will never be done."""
        if isinstance(error, OF_ALL_RANKS) and not self.job.session.place.is_leader:
            time.sleep(REPORT_SECONDS)
        end_group(error)


_shared: SharedJob | None = None


def hold(algorithm: str | None = None) -> SharedJob:
    """Return the job of this process. `algorithm`: that of the first store's type, if any.

    The first call waits for all operations of MXNet, and joins the job. From then on an unhandled exception ends the
    group, and the end of the process ends its part in the job. Raises ConfigError if MXNet's engine cannot run
    operations beside the program, and the error of an operation that has failed.
    """
    global _shared
    if _shared is None:
        if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
            raise ConfigError(
                "MXNET_ENGINE_TYPE=NaiveEngine runs one operation after the other, and so would wait for ever: unset it"
            )
        # MPI sets environment variables when it starts. Operations of MXNet read some, and C forbids both at once.
        mx.nd.waitall()
        _shared = SharedJob(algorithm)
        sys.excepthook = lambda kind, error, trace: end_group(error)
        atexit.register(release)
        # At a fork MXNet waits for its engine while it holds Python's lock, and what ends operations needs that lock.
        os.register_at_fork(before=_before_fork)
    return _shared


def _before_fork() -> None:
    if _shared is not None and _shared.pid == os.getpid():
        _shared.finish()


def release() -> Job | None:
    """End this process's part in the job, when all operations under way are done. Return the job, or None."""
    global _shared
    if _shared is None or _shared.pid != os.getpid():
        return None
    shared, _shared = _shared, None
    shared.close()
    return shared.job
