"""The algorithms, by name.

Each is a composition of what goes where and when; a new one is a file beside these and a line here.
"""

from __future__ import annotations

import difflib

import msgspec

from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.mpi_esgd import MpiESGD
from hybridps.algorithms.mpi_sgd import MpiSGD
from hybridps.algorithms.uplink import Uplink
from hybridps.config import Settings
from hybridps.errors import ConfigError
from hybridps.tensor_collectives import Levels

ALGORITHMS = {
    "sync": MpiSGD.name,
    "elastic": MpiESGD.name,
    "mpi-sgd": MpiSGD.name,
    "mpi-esgd": MpiESGD.name,
    "dist-sgd": MpiSGD.name,
    "dist-esgd": MpiESGD.name,
}
"""Every name that a user may give, and the algorithm it means. `dist-`: each worker is a group of its own."""

__all__ = ["ALGORITHMS", "Algorithm", "MpiESGD", "MpiSGD", "make_algorithm", "resolve"]


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
    name: str, levels: Levels, uplink: Uplink, settings: Settings, *, workers: int, groups: int, has_servers: bool
) -> Algorithm:
    """The algorithm of a short name, for one rank."""
    if name == MpiESGD.name:
        alpha = 0.9 / groups if settings.alpha is None else settings.alpha
        return MpiESGD(levels, uplink, workers=workers, alpha=alpha, tau=settings.tau, has_centre=has_servers)
    return MpiSGD(levels, uplink)
