"""Collectives that run in the background while the caller continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

from hybridps.errors import GroupError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Pending(Generic[Result]):
    """An operation in progress. The caller must not use its arrays until `wait` has returned."""

    def __init__(self, future: Future[Result], background: Background) -> None:
        self._future = future
        self._background = background
        self._waited = False

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> Result:
        """Wait for the operation and return its result. Raises its exception, or GroupError on a second call."""
        if self._waited:
            raise GroupError("this collective was already waited for: call `wait` once for each")
        self._waited = True
        try:
            return self._future.result()
        except BaseException:
            self._background.error_was_raised = True
            raise


class Background:
    """A thread that runs the collectives of a group one at a time, in the order of the calls of `start`.

    All ranks must start the same operations in the same order, and must not use the group elsewhere while an operation
    is pending. This is a context manager; on leaving, it waits for the operations that were started.

        with Background() as background:
            pending = background.start(allreduce_, tensor, group, "mean")
            ...
            pending.wait()
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="hybridps-collectives")
        self._error: BaseException | None = None
        self.error_was_raised = False

    def start(
        self, operation: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Pending[Result]:
        """Run `operation(*arguments, **options)` after all operations that were started before.

        After a failure no further operation runs, because it would meet a different operation of the other ranks.
        """

        def run() -> Result:
            if self._error is not None:
                raise GroupError(f"not started, because an earlier collective failed: {self._error}")
            try:
                return operation(*arguments, **options)
            except BaseException as error:
                self._error = error
                raise

        return Pending(self._executor.submit(run), self)

    def close(self) -> None:
        """Wait for all operations. Raises the error of a failed one if no caller of `wait` has received it."""
        self._executor.shutdown()
        if self._error is not None and not self.error_was_raised:
            raise self._error

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        self._executor.shutdown(cancel_futures=True)
