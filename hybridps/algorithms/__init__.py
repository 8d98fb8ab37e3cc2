"""The algorithms, by name.

Each is a composition of what goes where and when; a new one is a file beside these and a line here.
"""

from __future__ import annotations

import difflib

import msgspec

from hybridps.algorithms.algorithm import Algorithm, reduce_all_
from hybridps.algorithms.mpi_esgd import MpiESGD
from hybridps.algorithms.mpi_sgd import MpiSGD
from hybridps.algorithms.server_sgd import ServerSGD
from hybridps.algorithms.uplink import UNDER_WAY, Uplink
from hybridps.config import Settings
from hybridps.errors import ConfigError
from hybridps.ps.clocks import BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules import Elastic, Rule
from hybridps.tensor_collectives import Levels

ALGORITHMS = {
    "sync": MpiSGD.name,
    "elastic": MpiESGD.name,
    "mpi-sgd": MpiSGD.name,
    "mpi-esgd": MpiESGD.name,
    "dist-sgd": MpiSGD.name,
    "dist-esgd": MpiESGD.name,
    "async": ServerSGD.name,
    "mpi-asgd": ServerSGD.name,
    "dist-asgd": ServerSGD.name,
}
"""Every name that a user may give, and the algorithm it means. `dist-`: each worker is a group of its own."""

__all__ = [
    "ALGORITHMS",
    "UNDER_WAY",
    "Algorithm",
    "MpiESGD",
    "MpiSGD",
    "ServerSGD",
    "make_algorithm",
    "reduce_all_",
    "resolve",
]


def resolve(settings: Settings) -> Settings:
    """Settings with the algorithm's short name, and the groups that a `dist-` name implies.

    Raises ConfigError for an unknown name.
    """
    given = settings.algorithm
    if given is None:
        return settings
    name = given.lower()
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0.0)
        raise ConfigError(f"algorithm {given!r} is unknown; did you mean {near[0]!r}? Known: {', '.join(ALGORITHMS)}")
    if name.startswith("dist-"):
        settings = msgspec.structs.replace(settings, workers_per_group=1)
    return msgspec.structs.replace(settings, algorithm=ALGORITHMS[name])


def make_algorithm(
    name: str,
    levels: Levels,
    uplink: Uplink,
    settings: Settings,
    *,
    workers: int,
    groups: int,
    has_servers: bool,
    rule: Rule | None = None,
    clock: Clock | None = None,
) -> Algorithm:
    """The algorithm of a short name, for one rank.

    `rule`: what the servers do; with the name `sync` they then update too. Raises ConfigError where it, or a server, is
    missing.
    """
    if name == MpiESGD.name:
        alpha = 0.9 / groups if settings.alpha is None else settings.alpha
        rule = rule or Elastic(alpha)
        return MpiESGD(levels, uplink, workers=workers, rule=rule, tau=settings.tau, has_centre=has_servers)
    if name == MpiSGD.name and rule is None:
        return MpiSGD(levels, uplink)
    if rule is None or not has_servers:
        raise ConfigError(
            f"the algorithm {name!r} updates at the servers, and there is no "
            f"{'rule' if rule is None else 'server'}: give a rule, as in job.algorithm({name!r}, rule=SGD(rate=0.1)), "
            "in a job that has servers"
        ).on_all_ranks()
    usual = BulkSynchronous() if name == MpiSGD.name else FreeRunning()
    return ServerSGD(levels, uplink, rule, clock or usual)
