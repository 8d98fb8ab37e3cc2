"""Collectives that go on while the caller does something else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

from hybridps.errors import GroupError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Pending(Generic[Result]):
    """An operation under way. Its arrays belong to it until `wait` has returned."""

    def __init__(self, future: Future[Result], failed: Callable[[], None]) -> None:
        self._future = future
        self._failed = failed
        self._waited = False

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> Result:
        """Return when it is done; raises what it raised. GroupError if it was waited for already."""
        if self._waited:
            raise GroupError("this collective was waited for already: wait once for each")
        self._waited = True
        try:
            return self._future.result()
        except BaseException:
            self._failed()
            raise


class Background:
    """A thread that runs the collectives of a group one after the other, in the order of `start`.

    All ranks must start the same in the same order, and use the group only here while something is pending. A context
    manager; leaving it waits for what was started.

        with Background() as background:
            pending = background.start(allreduce_, tensor, group, "mean")
            ...
            pending.wait()
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="hybridps-collectives")
        self._error: BaseException | None = None
        self._told = False

    def start(
        self, operation: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Pending[Result]:
        """Begin `operation(*arguments, **options)` when what was started before is done.

        After one that failed no other begins: it would meet another one of the other ranks.
        """

        def run() -> Result:
            if self._error is not None:
                raise GroupError(f"not begun, as a collective before it failed: {self._error}")
            try:
                return operation(*arguments, **options)
            except BaseException as error:
                self._error = error
                raise

        return Pending(self._executor.submit(run), self._was_told)

    def close(self) -> None:
        """Wait for what was started. Raises what went wrong, if nobody has waited for it."""
        self._executor.shutdown()
        if self._error is not None and not self._told:
            raise self._error

    def _was_told(self) -> None:
        self._told = True

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._executor.shutdown(cancel_futures=True)
        else:
            self.close()
