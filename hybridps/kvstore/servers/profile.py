"""The profile of a job's servers, as `mx.profiler` requests it with `profile_process='server'`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from hybridps.errors import ConfigError, HybridPSError
from hybridps.job import Job
from hybridps.kvstore.servers.chrome_trace import chrome_trace
from hybridps.ps.client import Client
from hybridps.step import Schedule

Result = TypeVar("Result")

OPTIONS = {
    "filename",
    "profile_all",
    "profile_symbolic",
    "profile_imperative",
    "profile_memory",
    "profile_api",
    "continuous_dump",
    "dump_period",
    "aggregate_stats",
    "profile_process",
}
"""The options of `mx.profiler.set_config`."""


class ServersProfile:
    """The servers record, and the first worker of the job reads the records and writes a file for each server.

    As with MXNet's stores, calls of other workers do nothing. Without servers of hybridps nothing is recorded, which is
    noted once.
    """

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._job = job
        self._schedule = schedule
        self._path = Path("profile.json")
        self._runs = self._is_paused = False
        self._has_records = False
        """Whether the servers may have records that are in no file."""
        self._told = False

    def configure(self, options: Mapping[str, str]) -> None:
        """Use options of `mx.profiler.set_config`, as text. Only `filename` has an effect. Raises ConfigError."""
        unknown = options.keys() - OPTIONS
        if unknown:
            raise ConfigError(f"{min(unknown)} is no option of the profiler: use {', '.join(sorted(OPTIONS))}")
        path = Path(options.get("filename", "profile.json"))
        if not path.name:
            raise ConfigError(f"filename={str(path)!r} names no file: give one, as in filename='profile.json'")
        self._path = path

    def set_state(self, runs: bool) -> None:
        """Begin to record, or stop. Raises ServerError if the servers have no room for it."""
        self._runs = runs
        self._change()

    def pause(self, is_paused: bool) -> None:
        """Pause the recording, or continue it if it is on. Raises as `set_state`."""
        self._is_paused = is_paused
        self._change()

    def dump(self, finished: bool) -> None:
        """Write the records so far. `finished`: also end the recording. Raises ConfigError for an unwritable file."""
        if not self._has_records or self._job.worker:
            return
        for server, address in enumerate(self._job.servers):
            read = self._ask(partial(Client.read_profile, server=server))
            if read is None:
                return
            records, missing = read
            path = self._path.with_name(f"rank{server}_{self._path.name}")
            try:
                path.write_bytes(msgspec.json.encode(chrome_trace(server, records)))
            except OSError as error:
                raise ConfigError(
                    f"the profile of the server at {address} cannot be written to {str(path)!r}: {error.strerror}; "
                    "give mx.profiler.set_config another filename"
                ) from None
            if missing:
                self._job.session.note(
                    f"{path} has the first {len(records)} records, and {missing} later ones are missing: profile fewer "
                    "steps"
                )
        if finished:
            self._ask(lambda client: client.profile("end"))
            self._runs = self._has_records = False

    def close(self) -> None:
        """Write the records that are in no file yet, as MXNet's servers do at their end. A failure becomes a note."""
        try:
            self.dump(finished=True)
        except HybridPSError as error:
            self._job.session.note(str(error))

    def _change(self) -> None:
        runs = self._runs and not self._is_paused
        if not self._job.worker and (runs or self._has_records):
            try:
                self._ask(lambda client: client.profile("run" if runs else "stop"))
            except HybridPSError:
                if runs and not self._has_records:
                    self._runs = False
                    self._ask(lambda client: client.profile("end"))  # other servers may have begun
                raise
            self._has_records |= runs and self._job.client is not None and not self._job.session.settings.trace

    def _ask(self, work: Callable[[Client], Result]) -> Result | None:
        """Ask the servers, on the communication thread. An error would end the job there, so it is raised here."""
        client, is_traced = self._job.client, self._job.session.settings.trace
        if client is None or is_traced:
            if not self._told:
                self._job.session.note(
                    "the servers are traced (HYBRIDPS_TRACE), so they are not profiled: see `hybridps trace`"
                    if is_traced
                    else "there are no servers of hybridps in this job: none is profiled"
                )
            self._told = True
            return None

        def ask() -> tuple[Result | None, HybridPSError | None]:
            try:
                return work(client), None
            except HybridPSError as error:
                return None, error

        result, error = self._schedule.call("the profile of the servers", ask, local=True)
        if error is not None:
            raise error
        return result
