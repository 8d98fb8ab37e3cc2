"""The levels of a rank's group, with the tuning that chooses its collectives."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridps.config import Settings, find_tuning_file
from hybridps.errors import HybridPSError
from hybridps.events import Chosen
from hybridps.mpi_groups.group import Group, allgather
from hybridps.mpi_groups.session import Session, agree
from hybridps.tensor_collectives import BUILT_IN, Choice, Chooser, Levels, Tuning


def make_levels(session: Session) -> Levels:
    """Return the levels of a duplicate of this rank's group. Errors of settings and tuning are raised on all ranks."""
    group, settings, error = session.group.split(0), session.settings, None
    nodes = [place.node for place in session.plan.places if place.group == session.place.group]
    chooser = Chooser(group.size, len(set(nodes)))
    tuning = _read_tuning(session, group)
    try:
        forced = (settings.collective, settings.collective_chunk_bytes, _why_only_own(settings))
        chooser = Chooser(group.size, len(set(nodes)), tuning, *forced)
    except HybridPSError as problem:  # perhaps in this group only
        error = problem
    agree(session.workers, error)

    def chosen(choice: Choice) -> None:
        session.events.emit(Chosen(**msgspec.structs.asdict(choice), ranks=group.size, nodes=len(set(nodes))))

    levels = Levels(group, nodes, settings.deadline_seconds, settings.wire, chooser, chosen)
    if levels.note:
        session.note(f"the ranks of a node do not share memory: {levels.note}")
    return levels


def _read_tuning(session: Session, group: Group) -> Tuning:
    """Return the leader's tuning, on all ranks of the group. If it cannot be read, the error is raised on all ranks."""
    settings, tuning, error = session.settings, BUILT_IN, None
    wanted = settings.tuning != "built-in" and not settings.deterministic
    path = (Path(settings.tuning) if settings.tuning else find_tuning_file()) if group.rank == 0 and wanted else None
    if path is not None:
        try:
            tuning = Tuning.read(path)
        except HybridPSError as problem:
            error = problem
    agree(session.workers, error)
    return allgather(group, tuning, Tuning)[0]


def _why_only_own(settings: Settings) -> str:
    """Return why the MPI library's collectives must not be used; empty if they may be used."""
    if settings.deterministic:
        return "the order of summation shall be the same in every run (HYBRIDPS_DETERMINISTIC)"
    if settings.wire != "exact":
        return f"it does not send {settings.wire} between nodes (HYBRIDPS_WIRE)"
    return ""
