"""Many light groups in one process, each a client of one server that is killed again and again."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.chaos.light_jobs import JOBS, TABLE, LightJob
from benchmarks.chaos.outcomes import Outcome, by_kind
from benchmarks.chaos.schedule import Fault, Victim, make_schedule
from benchmarks.chaos.servers import RestartedServer
from hybridps.config import Settings
from hybridps.ps.client import Client

KINDS = ("kill-server", "vanish", "pause")
"""The server is killed; a group ends without leaving and comes back; a group does nothing for a while."""

LOST_SECONDS = 2.0
TOLD_SECONDS = 0.4
"""The server is told about groups that vanish from synchronous jobs for less than this; it notices the others
itself."""
END_SECONDS = 120.0
"""The longest time that groups may take to end."""
SETTINGS = Settings(
    chunk_bytes=1 << 14, lost_seconds=LOST_SECONDS, heartbeat_seconds=0.5, deadline_seconds=60.0, connect_seconds=30.0
)


class LightError(Exception):
    """A group has failed, or has not ended in time."""


class LightGroup(threading.Thread):
    """A group of one worker, in a thread, that exchanges until it is told to end."""

    def __init__(
        self, server: RestartedServer, job: LightJob, group: int, run: LightRun, meeting: threading.Barrier
    ) -> None:
        super().__init__(name=f"{job.name} {group}", daemon=True)
        self.exchanges = 0
        self.error: BaseException | None = None
        self.centre = np.zeros(job.layout.length, np.float32)
        """The centre when all groups of the job have ended their exchanges, unless the job is synchronous."""
        self._server, self._job, self._group, self._run = server, job, group, run
        self._meeting = meeting
        self._share = job.shares[group]
        self._orders: queue.SimpleQueue[Fault] = queue.SimpleQueue()

    def hit(self, fault: Fault) -> None:
        """Let a fault happen to this group after its current exchange. Any thread may call this."""
        self._orders.put(fault)

    def run(self) -> None:
        try:
            client = self._open()
            while not self._run.end.is_set() or not self._orders.empty():
                client = self._suffer(client)
                self._exchange(client)
            if not self._job.is_synchronous:  # otherwise others may still wait for this group, until it leaves
                self._meeting.wait(END_SECONDS)
                client.pull(TABLE, self.centre)
                self._meeting.wait(END_SECONDS)
            client.close()
        except BaseException as error:
            self.error = error
            self._meeting.abort()
            self._run.end.set()

    def _open(self) -> Client:
        client = Client(
            [self._server.address], job=self._job.name, group=self._group, groups=self._job.groups, settings=SETTINGS
        )
        client.register(TABLE, self._job.layout, None, self._job.rule, self._job.clock)
        return client

    def _exchange(self, client: Client) -> None:
        self._share.exchange(client)
        self.exchanges += 1
        self._run.progress += 1  # the count only has to change

    def _suffer(self, client: Client) -> Client:
        """Let the next fault happen, if there is one. Return the client to continue with."""
        try:
            fault = self._orders.get_nowait()
        except queue.Empty:
            return client
        may_vanish, injected = self._run.may_vanish[self._job.name], time.monotonic()
        if fault.kind == "vanish":
            if not may_vanish.acquire(blocking=False):
                self._orders.put(fault)  # later: one group of the job at least stays, and must not be waited for
                return client
            client = self._vanish(client, fault)
            may_vanish.release()
        else:
            time.sleep(fault.lasts)
            self._exchange(client)
        self._run.outcomes.append(Outcome(fault, injected, time.monotonic()))
        return client

    def _vanish(self, client: Client, fault: Fault) -> Client:
        """Die, during an exchange or between two, and come back."""
        if self._group % 3:
            self._share.leave_under_way(client)
        client.close(lost=True)
        time.sleep(fault.lasts)
        if self._job.is_synchronous and fault.lasts < TOLD_SECONDS:
            self._tell_end()
        self._share.come_back()
        client = self._open()
        self._exchange(client)
        return client

    def _tell_end(self) -> None:
        """Tell the server that this group has ended. Return when others have continued without it.

        They may end the round that it was in, but not the next one, before the server knows.
        """
        others = [member for member in self._run.members[self._job.name] if member is not self]
        before = [member.exchanges for member in others]
        end = time.monotonic() + 2 * LOST_SECONDS
        self._server.tell_end(self._job.name, self._group)
        while all(member.exchanges < was + 2 for member, was in zip(others, before, strict=True)):
            if time.monotonic() > end:  # the server that was told has been killed: the group is lost by now
                return
            time.sleep(0.005)


class LightRun:
    """What the groups of a run share."""

    def __init__(self, jobs: Sequence[LightJob]) -> None:
        self.end = threading.Event()
        self.progress = 0
        self.outcomes: list[Outcome] = []
        self.members: dict[str, list[LightGroup]] = {job.name: [] for job in jobs}
        self.may_vanish = {job.name: threading.Semaphore(job.groups - 1) for job in jobs}


def run_light(groups: int, seconds: float, count: int, seed: int, kinds: Sequence[str]) -> dict[str, Any]:
    """Let the groups of four jobs exchange under `count` faults. Return the results.

    Raises LightError, DivergedError or ServerError if something did not survive.
    """
    jobs = [kind(groups // len(JOBS) + (number < groups % len(JOBS))) for number, kind in enumerate(JOBS)]
    run = LightRun(jobs)
    victims = {
        kind: [Victim(0)] if kind == "kill-server" else [Victim(place) for place in range(groups)] for kind in kinds
    }
    schedule = make_schedule(seed, victims, count, seconds)
    with ExitStack() as stack:
        server = stack.enter_context(RestartedServer(SETTINGS))
        members: list[LightGroup] = []
        for job in jobs:
            meeting = threading.Barrier(job.groups)
            run.members[job.name] = [LightGroup(server, job, group, run, meeting) for group in range(job.groups)]
            members += run.members[job.name]
        for member in members:
            member.start()
        try:
            began = _inject(schedule, run, server, members)
            _await_outcomes(run, len(schedule), members)
        finally:
            run.end.set()
        _await(members)
        took = time.monotonic() - began
    checks = {}
    for job in jobs:
        checks[job.name] = job.check(run.members[job.name][0].centre)
    return {
        "form": "light",
        "groups": groups,
        "seconds": took,
        "exchanges": sum(member.exchanges for member in members),
        "injected": len(schedule),
        "survived": len(run.outcomes),
        "kinds": by_kind(run.outcomes),
        "checks": checks,
    }


def _inject(schedule: Sequence[Fault], run: LightRun, server: RestartedServer, members: list[LightGroup]) -> float:
    """Let the faults happen, each at its time or soon after it. Return the moment from which their times count."""
    while run.progress < len(members):  # all have begun, or nearly all
        _check(members)
        time.sleep(0.01)
    began = time.monotonic()
    for fault in schedule:
        run.end.wait(max(0.0, began + fault.seconds - time.monotonic()))
        _check(members)
        if fault.kind == "kill-server":
            injected = time.monotonic()
            server.kill()
            before = run.progress
            while run.progress == before and not run.end.is_set():
                time.sleep(0.001)
            run.outcomes.append(Outcome(fault, injected, time.monotonic()))
        else:
            members[fault.victim.place].hit(fault)
    return began


def _await_outcomes(run: LightRun, count: int, members: Sequence[LightGroup]) -> None:
    """Wait until `count` faults are recovered from: a group must not come back when all others have left."""
    end = time.monotonic() + END_SECONDS
    while len(run.outcomes) < count:
        _check(members)
        if time.monotonic() > end:
            raise LightError(f"{count - len(run.outcomes)} faults were not recovered from within {END_SECONDS:g} s")
        time.sleep(0.01)


def _check(members: Sequence[LightGroup]) -> None:
    """Raise LightError if a group has failed."""
    failed = [member for member in members if member.error is not None]
    causes = [member for member in failed if not isinstance(member.error, threading.BrokenBarrierError)]
    for member in causes or failed:
        raise LightError(f"group {member.name}: {type(member.error).__name__}: {member.error}")


def _await(members: Sequence[LightGroup]) -> None:
    """Wait until all groups have ended. Raises LightError if one has failed or does not end."""
    end = time.monotonic() + END_SECONDS
    for member in members:
        member.join(max(0.0, end - time.monotonic()))
    _check(members)
    left = [member.name for member in members if member.is_alive()]
    if left:
        raise LightError(f"groups did not end within {END_SECONDS:g} s: {', '.join(left)}")
