"""Groups of one job whose ranks are threads, with a real server, for tests of algorithms."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
from gossiping import Circle

from hybridps.algorithms import Algorithm, Row, choose_row, make_algorithm
from hybridps.config import Settings
from hybridps.events import EventLog
from hybridps.memory import Layout
from hybridps.mpi_groups import ThreadGroup
from hybridps.ps.client import Client
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import Rule
from hybridps.ps.server import Server
from hybridps.step import JobContext
from hybridps.tensor_collectives import Levels
from hybridps.tiers import GossipTier, NoTier, ServersTier, Tier

SETTINGS_GIVEN = {"chunk_bytes": 1024, "connect_seconds": 5.0, "deadline_seconds": 10.0, "lost_seconds": 5.0}
SECONDS = 60.0
"""How long a rank waits for the others of its group."""
LAYOUT = Layout.of("float32", {"a": (37, 5), "b": (300,)})


def group_of(worker: int, sizes: tuple[int, ...]) -> int:
    return next(group for group in range(len(sizes)) if worker < sum(sizes[: group + 1]))


class Groups:
    """The groups of one job, whose ranks are threads; a server if there are several groups or one is asked for."""

    server: Server | None = None
    """Not needed where groups gossip."""
    jobs = 0

    def __init__(self, sizes: tuple[int, ...], has_servers: bool, settings: Settings, nodes: int = 4) -> None:
        self.addresses = [] if Groups.server is None else [Groups.server.address]
        self.sizes = sizes
        self.settings = settings
        self.has_servers = has_servers or len(sizes) > 1
        self.nodes = nodes
        Groups.jobs += 1
        self.job = f"job-{Groups.jobs}"

    def open(self, world: ThreadGroup) -> tuple[Levels, Client | None]:
        """A rank's levels, and the leader's connection."""
        index = group_of(world.rank, self.sizes)
        group = world.split(index)
        levels = Levels(group, [rank // self.nodes for rank in range(group.size)], SECONDS)
        return levels, self.connect(index) if self.has_servers and group.rank == 0 else None

    def connect(self, index: int) -> Client:
        return Client(self.addresses, job=self.job, group=index, groups=len(self.sizes), settings=self.settings)

    def tier(self, levels: Levels, store: Client | None, prefix: str = "") -> Tier:
        return ServersTier(levels.group, store, prefix) if self.has_servers else NoTier(levels.group)


def run(
    sizes: tuple[int, ...],
    name: str,
    work: Callable[[Algorithm, int], object],
    nodes: int = 4,
    rule: Rule | None = None,
    clock: Clock | None = None,
    has_servers: bool | None = None,
    **settings,
) -> list:
    """Call `work(algorithm, worker)` on every worker of groups of these sizes; a server unless one group needs none."""
    if has_servers is None:
        has_servers = not (name == "sync" and rule is None)
    groups = Groups(sizes, has_servers, Settings(**{**SETTINGS_GIVEN, **settings}), nodes)
    row = choose_row(name, groups.settings, len(sizes), groups.has_servers, rule, clock)
    if row.partnership is not None and len(sizes) > 1:
        return _run_gossip(groups, row, work)

    def body(world: ThreadGroup) -> object:
        levels, store = groups.open(world)
        tier = groups.tier(levels, store)
        algorithm = make_algorithm(row, levels, tier, workers=sum(sizes))
        try:
            result = work(algorithm, world.rank)
            world.barrier()
            algorithm.close()
        finally:
            if store is not None:
                store.close()
        return result

    return ThreadGroup.run(sum(sizes), body)


def job_context(sizes: tuple[int, ...], worker: int, **settings) -> JobContext:
    """Return what a Schedule and gradients need to know of a worker, in groups of these sizes."""
    watch, events = lambda what: nullcontext(), EventLog(None, worker)
    given = Settings(**{**SETTINGS_GIVEN, **settings})
    return JobContext(given, worker, len(sizes), events, watch, group_of(worker, sizes))


def _run_gossip(groups: Groups, row: Row, work: Callable[[Algorithm, int], object]) -> list:
    """As `run`, of groups that need no server."""
    circle = Circle(len(groups.sizes), groups.settings)
    groups.has_servers = False

    def body(world: ThreadGroup) -> object:
        levels, _ = groups.open(world)
        index = group_of(world.rank, groups.sizes)
        partners = circle.open(index) if levels.group.rank == 0 else None
        assert row.partnership is not None
        tier = GossipTier(levels.group, partners, row.partnership, len(groups.sizes), "0/")
        try:
            algorithm = make_algorithm(row, levels, tier, workers=sum(groups.sizes))
            result = work(algorithm, world.rank)
            world.barrier()
            algorithm.close()
        finally:
            if partners is not None:
                circle.end(index)
        return result

    try:
        return ThreadGroup.run(sum(groups.sizes), body)
    finally:
        circle.close()


def reduced(algorithm: Algorithm, gradient: np.ndarray) -> np.ndarray:
    tensor = algorithm.levels.tensor(LAYOUT.length, "float32")
    tensor.vectors[0][:] = gradient
    chunk = 1024 // 4
    starts = range(0, LAYOUT.length, chunk)
    for exchange in [algorithm.reduce_("t", tensor, at, min(at + chunk, LAYOUT.length)) for at in starts]:
        algorithm.finish_(exchange)
    return tensor.vectors[0]
