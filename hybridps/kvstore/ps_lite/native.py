"""This process as a worker of ps-lite: MXNet's native store with deadlines, which its own calls lack."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from types import MappingProxyType
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, KVStoreHandle, MXNetError, check_call
from mxnet.ndarray import NDArray

from hybridps.addresses import Scheduler
from hybridps.config import Settings
from hybridps.errors import FAILED, DeadlineError, HybridPSError, ServerError
from hybridps.kvstore.arrays import push_operation
from hybridps.ps.clocks import BulkSynchronous, Clock

CONTROLLER, SYNCHRONOUS = 0, 3
"""Commands of MXNet's servers: one for their Python code, and one that makes a push wait for all workers."""

_START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p * 3), ctypes.c_void_p)
_DONE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_numbers = itertools.count(1)
_futures: dict[int, Future[None]] = {}
"""The futures of operations under way, by their numbers."""


@_START
def _start(_run_context: int, on_complete: ctypes._Pointer[ctypes.Array[ctypes.c_void_p]], number: int) -> None:
    """End an operation as soon as its arrays are ready, on a thread of MXNet's engine."""
    callback, engine, parameter = on_complete.contents
    _DONE(callback or 0)(engine, parameter, None)
    _futures.pop(number).set_result(None)


class Native:
    """The one worker of ps-lite that a process may be.

    ps-lite waits for others in C code, for ever. A call that may block therefore runs on a thread of its own, and the
    caller waits for at most `deadline_seconds`, and only while the scheduler can be reached. A failed call is not
    repeated: ps-lite cannot recover from it, and MXNet would wait for it at the end of the process. The process then
    ends at once with status 1.
    """

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self.scheduler = scheduler
        self._settings = settings
        self._failure: HybridPSError | None = None
        self.clock: type[Clock] | None = None
        """The clock of all exchanges. With `BulkSynchronous` each push waits for a push of all groups."""
        self._keys = 0
        self._users = 0
        variables = scheduler.environment("worker", self._find(settings.connect_seconds))
        others = {name: os.environ.pop(name) for name in variables if name in os.environ}
        os.environ.update(variables)  # ps-lite reads them when it starts; processes started later must not have them
        try:
            self.store: Any = self.call("meeting of all groups", lambda: mx.kv.create("dist_async"))
        finally:
            for name in variables:
                del os.environ[name]
            os.environ.update(others)
        check_call(_LIB.MXKVStoreSetBarrierBeforeExit(self.store.handle, 0))

    def join(self) -> None:
        """Count one more store that uses this."""
        self._check()
        self._users += 1

    def leave(self) -> None:
        """Count one store less. The last one leaves ps-lite, without waiting for other groups."""
        self._users -= 1
        if self._users:
            return
        store = self.store
        if self._failure is None:
            self.call("departure from MXNet's servers", lambda: check_call(_LIB.MXKVStoreFree(store.handle)))
            self._failure = ServerError(
                "this process has left MXNet's servers, and ps-lite accepts a process only once"
            )
        store.handle = KVStoreHandle()  # MXNet would free it a second time, or wait for ever

    def take_keys(self, count: int) -> range:
        """Return new keys. They are the same in all groups, which take them in the same order."""
        self._keys += count
        return range(self._keys - count, self._keys)

    def command(self, text: str, head: int = CONTROLLER) -> None:
        """Send a command to all servers. Return when they have received it."""
        self.call("command to MXNet's servers", lambda: self.store._send_command_to_servers(head, text))

    def use_clock(self, clock: Clock, table: str) -> None:
        """Have the servers complete rounds by this clock. Raises ServerError if an earlier exchange had another one."""
        if self.clock is None:
            self.clock = type(clock)
            if isinstance(clock, BulkSynchronous):
                self.command("", SYNCHRONOUS)
        if not isinstance(clock, self.clock):
            raise ServerError(
                f"table {table!r} has the clock {clock}, and this job's first exchange had {self.clock.__name__}: "
                "MXNet's servers have one for all tables; use the backend hybridps for both in one job"
            )

    def call(self, what: str, work: Callable[[], Any]) -> Any:
        """Return the result of work that may block. Raises DeadlineError or ServerError, now and in all later calls."""
        self._check()
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="hybridps-ps-lite", daemon=True).start()
        self.await_(what, future)
        try:
            return future.result()
        except MXNetError as error:
            raise self._failed(ServerError(f"the {what} has failed: {error}")) from None

    def await_(self, what: str, future: Future[Any]) -> None:
        """Return when the future is done. Raises DeadlineError or ServerError, now and in all later calls."""
        seconds = self._settings.deadline_seconds
        end = time.monotonic() + seconds
        while not future.done():
            self._check()
            left = end - time.monotonic()
            if left <= 0:
                raise self._failed(
                    DeadlineError(
                        f"the {what} is not done after {seconds:g} s: another group has not come so far; "
                        "look at what it does, or raise HYBRIDPS_DEADLINE_SECONDS"
                    )
                )
            if not wait([future], min(left, self._settings.heartbeat_seconds)).done:
                self._find(self._settings.lost_seconds)

    def _find(self, seconds: float) -> str:
        """Return this host's address on the way to the scheduler. Raises ServerError if it cannot be reached."""
        place = self.scheduler
        try:
            with socket.create_connection((place.host, place.port), seconds) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            raise self._failed(
                ServerError(
                    f"MXNet's scheduler at {place.host}:{place.port} cannot be reached: {error.strerror or error}; "
                    "look at its standard error, and at that of the servers, for the reason"
                )
            ) from None

    def _failed(self, error: HybridPSError) -> HybridPSError:
        if self._failure is None:
            atexit.register(_end_at_once)
        self._failure = error
        return error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class Operation:
    """An operation under way. Implements `Pending`."""

    not_finite: Mapping[int, int] = MappingProxyType({})

    def __init__(self, what: str, native: Native, arrays: Sequence[NDArray]) -> None:
        self._what = what
        self._native = native
        self._arrays = arrays
        self._future: Future[None] = Future()
        self._waited = False
        number = next(_numbers)
        _futures[number] = self._future
        push_operation(arrays, _start, number)

    def await_end(self) -> None:
        """Return when the operation is done. `wait` can still be called."""
        self._native.await_(self._what, self._future)

    def wait(self) -> None:
        """As `Pending.wait`."""
        if self._waited:
            raise ServerError(f"the {self._what} was waited for already: wait once for each operation")
        self._waited = True
        self.await_end()
        try:
            for array in self._arrays:
                array.wait_to_read()
        except MXNetError as error:
            raise ServerError(f"the {self._what} has failed: {error}") from None

    def wait_here(self) -> bool:
        """As `Pending.wait_here`: MXNet's servers are never away, as a job ends without them."""
        self.wait()
        return True

    def is_done_within(self, seconds: float) -> bool:
        """As `Pending.is_done_within`."""
        return bool(wait([self._future], seconds).done)


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)
