"""The profiles of jobs: what a server did for the jobs that asked for it, and when.

A job is never told about another one. Nothing is written at the server's host; clients read their profile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec.structs import replace

from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.model import Task
from hybridps.ps.profile import MOST_RECORDS, PAGE_RECORDS, RECORD, ROUND
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.members import Member, Members
from hybridps.ps.server.tables.jobs import Jobs

PROFILE_BYTES = MOST_RECORDS * RECORD.itemsize
PAGE_BYTES = (1 + PAGE_RECORDS) * RECORD.itemsize


class Profile:
    """The profile of one job. Any thread may call `add`; only the loop calls the other methods."""

    def __init__(self, budget: Budget) -> None:
        self.runs = True
        self._records = np.zeros(MOST_RECORDS, RECORD)
        self._count = 0
        self._lock = threading.Lock()
        budget.lend(self._records)

    def add(
        self,
        kind: bytes,
        began_ns: int,
        thread: int,
        table: str = "",
        chunk: int = -1,
        group: int = -1,
        request: int = -1,
    ) -> None:
        """Record a message or round that has just ended."""
        ended_ns = time.monotonic_ns()
        record = kind, table.encode(), chunk, group, thread, request, began_ns, ended_ns - began_ns
        with self._lock:
            if self._count < MOST_RECORDS:
                self._records[self._count] = record
            self._count += 1  # when it is written: a page may be read at any moment

    def page(self, number: int) -> np.ndarray:
        """Return a copy of one page, after a record that has the number of all records."""
        page = np.zeros(1 + PAGE_RECORDS, RECORD)
        page[0]["began_ns"] = self._count
        page[1:] = self._records[number * PAGE_RECORDS : (number + 1) * PAGE_RECORDS]
        return page


class Profiles:
    """All profiles. Only the loop uses them, except for the tasks that `timed` returns."""

    def __init__(self) -> None:
        self.of: dict[str, Profile] = {}
        """The profiles by job; empty while no job is profiled."""
        self._loop = 0
        """The identity of the loop's thread."""

    def carry_out(self, jobs: Jobs, member: Member, message: wire.Profile | wire.ProfilePage) -> list[np.ndarray]:
        """Do what a client asks for the profile of its job. Returns the page to send to it, if any.

        Raises ServerError if its tenant has no room, or if there is no profile.
        """
        budget, known = member.account.budget, self.of.get(member.job)
        if isinstance(message, wire.ProfilePage):
            if known is None:
                raise ServerError("there is no profile of this job here: run one first")
            _check_room(jobs, budget, PAGE_BYTES)
            page = known.page(message.page)
            budget.lend(page)
            return [page]
        if message.state == "end":
            self.of.pop(member.job, None)
        elif known is not None:
            known.runs = message.state == "run"
        elif message.state == "run":
            _check_room(jobs, budget, PROFILE_BYTES)
            self._loop = threading.get_ident()
            self.of[member.job] = Profile(budget)
        return []

    @contextmanager
    def recording(self, members: Members, identity: bytes, message: wire.Request) -> Iterator[None]:
        """Record the time that a message is handled in, even if it is refused, if the client's job is profiled."""
        member = members.by_name.get(identity) or members.by_name.get(getattr(message, "session", -1))
        began_ns = time.monotonic_ns()
        try:
            yield
        finally:
            profile = None if member is None else self.of.get(member.job)
            if member is not None and profile is not None and profile.runs:
                kind = type(message).__name__.lower().encode()
                table, request = getattr(message, "table", ""), getattr(message, "request", -1)
                profile.add(kind, began_ns, 0, table, group=member.group, request=request)

    def timed(self, task: Task) -> Task:
        """Return the task; if it computes a round of a profiled job, it records its time."""
        place = task.round_of
        profile = None if place is None else self.of.get(place.job)
        if place is None or profile is None or not profile.runs:
            return task

        def run() -> Any:
            began_ns, in_loop = time.monotonic_ns(), threading.get_ident() == self._loop
            result = task.run()
            profile.add(ROUND, began_ns, 0 if in_loop else 1 + task.owner, place.table, place.chunk)
            return result

        return replace(task, run=run)


def _check_room(jobs: Jobs, budget: Budget, nbytes: int) -> None:
    jobs.evict_for(budget, nbytes)
    budget.check(nbytes, "a profile")
