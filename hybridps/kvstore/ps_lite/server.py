"""A scheduler or a server of MXNet's KVStore: `python -m hybridps.kvstore.ps_lite.server ROLE SERVERS`.

ROLE is `scheduler` or `server`; SERVERS is their number. DMLC_* say where the scheduler is. It is MXNet's own server,
but for what a group tells it: that is text which is decoded and checked, where MXNet would unpickle an optimizer.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import mxnet as mx
from mxnet.kvstore.kvstore_server import KVStoreServer

from hybridps.kvstore.ps_lite.rules import Assignment, HybridPSRules
from hybridps.memory import keep_freed_memory
from hybridps.ps.rules import warm_up


class Server(KVStoreServer):
    """Serves until its process is ended. An error ends the process, and so the whole tier."""

    def __init__(self, store: Any, servers: int) -> None:
        super().__init__(store)
        self._servers = servers
        self._rules: HybridPSRules | None = None

    def _controller(self) -> Callable[[int, bytes, int | None], None]:
        return lambda _, body, __: _or_end(lambda: self._obey(body))

    def _obey(self, body: bytes) -> None:
        assignment = msgspec.json.decode(body, type=Assignment)
        if self._rules is None:  # MXNet takes no updater before it serves
            self._rules = mx.optimizer.create(HybridPSRules.__name__, servers=self._servers)
            update = mx.optimizer.get_updater(self._rules)
            self.kvstore._set_updater(lambda key, pushed, stored: _or_end(lambda: update(key, pushed, stored)))
        for dtype in assignment.rule.dtypes:
            warm_up(assignment.rule, dtype)
        self._rules.assign(assignment)


def _or_end(work: Callable[[], None]) -> None:
    """MXNet would go on after an exception, with values that are not there."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(role: str, servers: str) -> None:
    """Be that role, beside so many servers, until the process is ended."""
    keep_freed_memory()
    os.environ["DMLC_ROLE"] = role  # not before: where it is set `import mxnet` serves, and never returns
    Server(mx.kv.create("dist"), int(servers)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
