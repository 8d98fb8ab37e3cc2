"""Groups at MXNet's servers, each in a process of its own: ps-lite takes a process as one worker, once."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack

import numpy as np

from hybridps.config import Settings
from hybridps.errors import HybridPSError
from hybridps.processes import ServerProcess

SECONDS = 60


class MXNetTiers:
    """Servers and processes of groups, for each number of groups and clock, as these hold for a whole tier.

    Started in the thread that makes this, as they end with it.
    """

    def __init__(self, settings: Settings, servers: int, kinds) -> None:
        self._settings = settings
        self._servers = servers
        self._stack = ExitStack()
        self._groups = {(groups, clock): self._start(groups) for groups, clock in kinds}

    def connection(self, group, groups, clock):
        """To the process of a group."""
        return self._groups[groups, clock][group]

    def _start(self, groups):
        options = ["--groups", str(groups), "--servers", str(self._servers)]
        server = ServerProcess(Settings(backend="mxnet", quiet=True), arguments=options, start_seconds=SECONDS)
        self._stack.callback(server.stop)
        connections = []
        for group in range(groups):
            mine, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=obey, args=(theirs, server.address, group, groups, self._settings), daemon=True
            )
            process.start()
            theirs.close()
            self._stack.callback(process.kill)
            self._stack.callback(process.join, SECONDS)
            self._stack.callback(mine.close)
            connections.append(mine)
        return connections

    def close(self):
        self._stack.close()


class RemoteStore:
    """A store in the process of its group. Which tier it is at is settled by the rule of its first table."""

    def __init__(self, tiers, group, groups, job):
        self._tiers = tiers
        self._place = group, groups
        self._job = job
        self._connection = None

    def register(self, table, layout, initial, rule, clock=None, codec="exact"):
        if self._connection is None:
            kind = type(clock or rule.clocks[0]())
            self._connection = self._tiers.connection(*self._place, kind)
            self._call("open", self._job)
        return self._call("register", table, layout, initial, rule, clock, codec)

    def exchange(self, table, values, answer, start, stop):
        return RemotePending(self, self._call("exchange", table, values, start, stop), answer, start, stop)

    def pull(self, table, out):
        np.copyto(out, self._call("pull", table, out))

    def drop(self, table):
        self._call("drop", table)

    def close(self):
        if self._connection is not None:
            self._call("close")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _call(self, *request):
        self._connection.send(request)
        assert self._connection.poll(SECONDS), f"no answer to {request[0]} after {SECONDS} s"
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


class RemotePending:
    def __init__(self, store, number, target, start, stop):
        self.store, self.number, self.target, self.start, self.stop = store, number, target, start, stop

    def wait(self):
        answer = self.store._call("wait", self.number)
        if self.target is not None:
            np.copyto(self.target[self.start : self.stop], answer[self.start : self.stop])


class Group:
    """What a group's process does, by the names of requests."""

    def __init__(self, stores, address, group, groups, settings):
        self.open_store = lambda job: stores([address], job=job, group=group, groups=groups, settings=settings)
        self.keeper = self.open_store("keeper")
        self.pending = []

    def open(self, job):
        self.store = self.open_store(job)

    def register(self, *arguments):
        return self.store.register(*arguments)

    def exchange(self, table, values, start, stop):
        given, answer = values.copy(), np.full_like(values, np.nan)
        pending = self.store.exchange(table, values, answer, start, stop)
        np.testing.assert_array_equal(values, given)
        return self.begun(pending, answer)

    def pull(self, table, out):
        self.store.pull(table, out)
        return out

    def drop(self, table):
        self.store.drop(table)

    def begun(self, pending, answer):
        self.pending.append((pending, answer))
        return len(self.pending) - 1

    def wait(self, number):
        pending, answer = self.pending[number]
        pending.wait()
        return answer

    def close(self):
        self.store.close()


def obey(connection, address, group, groups, settings):
    """Be a group's process, until the connection is closed."""
    import hybridps.kvstore  # noqa: F401
    from hybridps.kvstore.ps_lite import MXNetStores

    mine = Group(MXNetStores(), address, group, groups, settings)
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            break
        try:
            answer = getattr(mine, name)(*arguments)
        except (HybridPSError, AssertionError) as error:
            answer = error
        connection.send(answer)
    mine.keeper.close()
