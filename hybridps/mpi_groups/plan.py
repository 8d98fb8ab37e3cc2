"""The plan: a pure function from the ranks and the settings to the place of every rank."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hybridps.config import Settings
from hybridps.errors import PlanError

WORKER = "worker"
SERVER = "server"


class Place(msgspec.Struct, frozen=True):
    """The role and position of one rank of the MPI world. For a server, all numbers but `world_rank` are -1."""

    world_rank: int
    role: str
    worker: int = -1
    """The number of the worker in the whole job, over all of its MPI worlds."""
    group: int = -1
    group_rank: int = -1
    """The rank in the group; 0 is the leader."""
    node: int = -1

    @property
    def is_leader(self) -> bool:
        return self.group_rank == 0


class Plan(msgspec.Struct, frozen=True):
    """The place of every rank of this MPI world, and the sizes of all groups of the job."""

    places: tuple[Place, ...]
    group_sizes: tuple[int, ...]

    @property
    def groups(self) -> int:
        return len(self.group_sizes)

    @property
    def workers(self) -> int:
        """The number of workers of the whole job."""
        return sum(self.group_sizes)

    @property
    def server_ranks(self) -> tuple[int, ...]:
        return tuple(place.world_rank for place in self.places if place.role == SERVER)


def make_plan(roles: Sequence[str], hosts: Sequence[str], settings: Settings) -> Plan:
    """Plan the places of the ranks of a world. `roles` and `hosts` are given in rank order.

    Consecutive workers form a group, and the workers of a host form a node. Raises PlanError, with the numbers, if the
    workers cannot be arranged as the settings ask.
    """
    workers = [rank for rank, role in enumerate(roles) if role == WORKER]
    if not workers:
        raise PlanError(f"none of the {len(roles)} ranks is a worker: start the training script on at least one rank")
    sizes = _group_sizes(len(workers), settings)
    groups: Sequence[int] = range(len(sizes))
    if settings.group_index is not None:  # this world has that group only
        groups = [_checked_index(len(workers), sizes, settings.group_index)]
    first_worker = sum(sizes[: groups[0]])
    nodes = _nodes([hosts[rank] for rank in workers], settings.ranks_per_node)
    places = {rank: Place(rank, SERVER) for rank, role in enumerate(roles) if role == SERVER}
    position = 0
    for group in groups:
        for group_rank in range(sizes[group]):
            rank = workers[position]
            places[rank] = Place(rank, WORKER, first_worker + position, group, group_rank, nodes[position])
            position += 1
    return Plan(tuple(places[rank] for rank in range(len(roles))), sizes)


def _group_sizes(workers: int, settings: Settings) -> tuple[int, ...]:
    """Return the sizes of all groups of the job. Raises PlanError if the settings contradict each other."""
    sizes, groups, each = settings.group_sizes, settings.groups, settings.workers_per_group
    if sizes is None and settings.group_index is not None:
        raise PlanError("HYBRIDPS_GROUP_INDEX needs HYBRIDPS_GROUP_SIZES, the sizes of all groups of the job")
    if sizes is None and each is not None:
        sizes = (each,) * (workers // each) + ((workers % each,) if workers % each else ())
        if groups not in (None, len(sizes)):
            raise PlanError(f"{workers} workers in groups of {each} are {len(sizes)} groups, not {groups}")
        return sizes
    if sizes is None:
        groups = groups or 1
        if groups > workers:
            raise PlanError(f"{workers} workers cannot form {groups} groups: a group needs at least one worker")
        return tuple(workers // groups + (group < workers % groups) for group in range(groups))
    if each is not None and any(size != each for size in sizes):
        raise PlanError(f"groups of {each} workers were asked for, and the group sizes are {_sum(sizes)}")
    if groups is not None and groups != len(sizes):
        raise PlanError(f"{groups} groups were asked for, and {len(sizes)} group sizes given: {_sum(sizes)}")
    if settings.group_index is None and sum(sizes) != workers:
        raise PlanError(f"{workers} workers cannot form groups of {_sum(sizes)} workers")
    return sizes


def _checked_index(workers: int, sizes: tuple[int, ...], index: int) -> int:
    """Return `index`. Raises PlanError unless that group exists and has as many workers as this world."""
    if index >= len(sizes):
        raise PlanError(f"group index {index} does not exist: there are {len(sizes)} groups, 0 to {len(sizes) - 1}")
    if sizes[index] != workers:
        raise PlanError(f"group {index} must have {sizes[index]} workers, and {workers} were started")
    return index


def _nodes(hosts: Sequence[str], ranks_per_node: int | None) -> list[int]:
    """Return the node number of each worker."""
    if ranks_per_node is not None:
        return [position // ranks_per_node for position in range(len(hosts))]
    numbers: dict[str, int] = {}
    return [numbers.setdefault(host, len(numbers)) for host in hosts]


def _sum(sizes: Sequence[int]) -> str:
    return f"{' + '.join(map(str, sizes))} = {sum(sizes)}"
