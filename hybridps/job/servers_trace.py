"""The trace of a job's servers. A leader asks them regularly what they did, and writes that to the run folder."""

from __future__ import annotations

import time

import numpy as np

from hybridps.config.racks import place_in_rack
from hybridps.errors import HybridPSError, ServerError
from hybridps.mpi_groups.session import Session
from hybridps.ps.client import Client
from hybridps.ps.profile import PAGE_RECORDS
from hybridps.tracing import Probe, Recorder, Served, TraceFile

PAUSE_SECONDS = 2.0
"""The least time between two requests to the servers."""

PAUSE_PER_COST = 300
"""The pause is at least this many times as long as asking took, which then costs at most a third of a percent."""

PROBES = 4
"""The number of messages that compare the clocks, each time."""


class ServersTrace:
    """Traces the servers of one rack. The thread that uses the client uses it; it asks while no exchange is under way.

    The leader of the first group reads what the servers have recorded. Leaders of other groups only compare their
    clocks with those of the servers. An error of the servers does not end the job: a note reports it, and the rest of
    their trace is missing.
    """

    def __init__(self, session: Session, client: Client, addresses: tuple[str, ...], first: int, reads: bool) -> None:
        """`first`: the number of the first of these servers in the job. `reads`: whether to read their records."""
        self._session = session
        self._client = client
        self._addresses = addresses
        self._first = first
        self._reads = reads
        self._due = 0.0
        self._written = [0] * len(addresses)
        """For each server, how many of its records are in the file."""
        settings, place = session.settings, session.place
        self._file = TraceFile(str(settings.run_folder), f"servers-{place.worker}", settings.trace_bytes)
        if session.trace.process is not None:
            self._file.write(session.trace.process, stays=True)
        self._failed = False

    def ask_if_due(self) -> None:
        """Ask the servers if it is time to."""
        began = time.monotonic()
        if not self._failed and began >= self._due and not self._client.away:
            self.ask()
            now = time.monotonic()
            self._due = now + max(PAUSE_SECONDS, PAUSE_PER_COST * (now - began))

    def ask(self) -> None:
        """Compare the clocks; on the first leader, also read what the servers have recorded."""
        try:
            for server, address in enumerate(self._addresses):
                if self._reads and self._due:
                    self._read(server, address)
                self._probe(server, address)
        except HybridPSError as error:
            self._failed = True
            self._session.note(f"the trace of the servers ends here: {error}")

    def close(self) -> None:
        """Read the remaining records, and have the servers delete them."""
        if not self._failed and self._reads and not self._client.away:
            self.ask()
        if not self._failed and self._reads and not self._client.away:
            try:
                self._client.profile("end")
            except HybridPSError as error:
                self._session.note(f"the servers still keep their profile of this job: {error}")
        self._file.close()

    def _probe(self, server: int, address: str) -> None:
        trace: Recorder = self._session.trace
        for _ in range(PROBES):
            began = time.monotonic()
            request = self._client.profile("run", [server])
            ended = time.monotonic()
            times = trace.microseconds(began), trace.microseconds(ended)
            self._file.write(Probe(self._first + server, address, request, *times))

    def _read(self, server: int, address: str) -> None:
        """Write the new records. A profile that has a page of records begins anew, so that reading stays short."""
        try:
            records, missing = self._client.read_profile(server)
        except ServerError:  # the server was restarted, and its profile is empty
            self._written[server] = 0
            return
        new = records[self._written[server] :]
        self._written[server] = len(records)
        if len(records) >= PAGE_RECORDS:
            self._client.profile("end", [server])
            self._written[server] = 0
        if len(new):
            self._file.write(_served(self._first + server, address, new, missing))


def trace_servers(session: Session, client: Client, servers: tuple[str, ...]) -> ServersTrace:
    """Return a trace of the servers of this leader's rack. It asks them after the leader's steps."""
    settings, group = session.settings, session.place.group
    place = place_in_rack(group, session.plan.groups, settings.racks, servers)
    trace = ServersTrace(session, client, place.servers, place.rack * len(place.servers), reads=place.group == 0)
    session.trace.on_step = trace.ask_if_due
    return trace


def _served(server: int, address: str, records: np.ndarray, missing: int) -> Served:
    numbers: dict[bytes, int] = {}
    kinds, tables = (
        [numbers.setdefault(name, len(numbers)) for name in records[column].tolist()] for column in ("kind", "table")
    )
    chunks, groups, threads, requests = (records[column].tolist() for column in ("chunk", "group", "thread", "request"))
    began, took = ((records[column] // 1000).tolist() for column in ("began_ns", "took_ns"))
    names = [name.decode(errors="replace") for name in numbers]
    return Served(server, address, names, kinds, tables, chunks, groups, threads, requests, began, took, missing)
