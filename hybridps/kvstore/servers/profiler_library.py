"""`mx.profiler` for servers of hybridps.

MXNet's functions pass the native handle of a store to MXNet's library. Stores of hybridps have none, so their calls are
caught here.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.base import KVStoreHandle

from hybridps.kvstore.calls import as_mxnet_does
from hybridps.kvstore.servers.profile import ServersProfile

SERVER = 1
"""`profile_process` of the library's functions, for the servers."""


class StoreHandle(KVStoreHandle):  # type: ignore[misc]
    """The handle of a hybridps store: a null pointer, with the profile of the store's servers."""

    def __init__(self, profile: ServersProfile) -> None:
        super().__init__()
        self.profile = profile


class ProfilerLibrary:
    """MXNet's library as `mx.profiler` sees it. Calls for the servers of hybridps stores go to their profile."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    @as_mxnet_does
    def MXSetProcessProfilerConfig(self, count: int, names: Any, values: Any, handle: Any) -> int:  # noqa: N802
        """`mx.profiler.set_config`."""
        options = {names[each].decode(): values[each].decode() for each in range(count)}
        if options.get("profile_process") != "server" or not isinstance(handle, StoreHandle):
            return int(self._library.MXSetProcessProfilerConfig(count, names, values, handle))
        handle.profile.configure(options)
        return 0

    @as_mxnet_does
    def MXSetProcessProfilerState(self, state: Any, process: int, handle: Any) -> int:  # noqa: N802
        """`mx.profiler.set_state`."""
        if process != SERVER or not isinstance(handle, StoreHandle):
            return int(self._library.MXSetProcessProfilerState(state, process, handle))
        handle.profile.set_state(bool(state.value))
        return 0

    @as_mxnet_does
    def MXProcessProfilePause(self, is_paused: int, process: int, handle: Any) -> int:  # noqa: N802
        """`mx.profiler.pause` and `resume`."""
        if process != SERVER or not isinstance(handle, StoreHandle):
            return int(self._library.MXProcessProfilePause(is_paused, process, handle))
        handle.profile.pause(bool(is_paused))
        return 0

    @as_mxnet_does
    def MXDumpProcessProfile(self, finished: int, process: int, handle: Any) -> int:  # noqa: N802
        """`mx.profiler.dump`."""
        if process != SERVER or not isinstance(handle, StoreHandle):
            return int(self._library.MXDumpProcessProfile(finished, process, handle))
        handle.profile.dump(bool(finished))
        return 0


mx.profiler._LIB = ProfilerLibrary(mx.profiler._LIB)
