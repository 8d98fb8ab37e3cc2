"""From a name, a rule and a clock to an algorithm: what fits together, and what is refused."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import msgspec

from hybridps.algorithms import mpi_esgd, mpi_sgd, server_sgd
from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.mpi_esgd import MpiESGD
from hybridps.algorithms.mpi_sgd import MpiSGD
from hybridps.algorithms.row import Row
from hybridps.algorithms.server_sgd import ServerSGD
from hybridps.config import Settings
from hybridps.errors import ConfigError
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules import AnyRule, Elastic, Rule
from hybridps.tensor_collectives import Levels
from hybridps.tiers import Tier

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


def short_name(given: str) -> str:
    """The algorithm that a name means. Raises ConfigError, with the nearest name, for an unknown one."""
    name = given.lower()
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0.0)
        raise ConfigError(f"algorithm {given!r} is unknown; did you mean {near[0]!r}? Known: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def resolve(settings: Settings) -> Settings:
    """Settings with the algorithm's short name, and the groups that a `dist-` name implies.

    Raises ConfigError for an unknown name.
    """
    given = settings.algorithm
    if given is None:
        return settings
    short = short_name(given)
    if given.lower().startswith("dist-"):
        settings = msgspec.structs.replace(settings, workers_per_group=1)
    return msgspec.structs.replace(settings, algorithm=short)


def choose_name(given: str | None, settings: Settings, group_sizes: Sequence[int]) -> str:
    """The short name of the algorithm that a script and the settings ask for. Raises ConfigError if they disagree.

    `group_sizes`: of the job's groups, which are made before a script can name an algorithm.
    """
    if given is None:
        return settings.algorithm or MpiSGD.name
    name = short_name(given)
    if settings.algorithm not in (None, name):
        raise ConfigError(
            f"the script asks for the algorithm {given!r}, and HYBRIDPS_ALGORITHM says {settings.algorithm!r}: "
            "drop one of the two"
        )
    if given.lower().startswith("dist-") and max(group_sizes) > 1:
        raise ConfigError(
            f"the algorithm {given!r} needs groups of one worker, and the groups of this job were made already, with "
            f"{max(group_sizes)} workers: set HYBRIDPS_ALGORITHM={given}, or start it with "
            f"`hybridps run --algorithm {given}`"
        )
    return name


def choose_row(
    name: str, settings: Settings, groups: int, has_servers: bool, rule: Rule | None, clock: Clock | None
) -> Row:
    """What the algorithm of a short name exchanges, with this rule and clock where they are given.

    Asynchronous SGD without servers and a rule is mpi-SGD: there is one group, whose workers update.

    Raises ConfigError for a rule, clock or number that has no meaning there, or where a rule or server is missing.
    """
    for record in (rule, clock):
        check_numbers(record)
    if rule is None and name == MpiSGD.name:
        codec = settings.wire if settings.backend == "hybridps" else "exact"
        return _with_clock(msgspec.structs.replace(mpi_sgd.ROW, codec=codec), name, clock)
    if rule is None and name == ServerSGD.name and not has_servers and clock is None:
        return mpi_sgd.ROW
    if name == MpiESGD.name:
        alpha = 0.9 / groups if settings.alpha is None else settings.alpha
        known = _known(rule or Elastic(alpha), name, mpi_esgd.RULES)
        return _with_clock(mpi_esgd.row(settings.tau, known, known.clocks[0]()), name, clock)
    if rule is None or not has_servers:
        raise ConfigError(
            f"the algorithm {name!r} updates at the servers, and there is no "
            f"{'rule' if rule is None else 'server'}: give a rule, as in job.algorithm({name!r}, rule=SGD(rate=0.1)), "
            "in a job that has servers"
        )
    loose = FreeRunning() if settings.staleness is None else BoundedStale(settings.staleness)
    usual = BulkSynchronous() if name == MpiSGD.name else loose
    return _with_clock(server_sgd.row(_known(rule, name, server_sgd.RULES), usual), name, clock)


def make_algorithm(row: Row, levels: Levels, tier: Tier, *, workers: int, has_servers: bool) -> Algorithm:
    """The algorithm of a row, for one rank. `workers`: of all groups."""
    if row.sends == "weights":
        return MpiESGD(levels, tier, row, workers=workers, has_centre=has_servers)
    return MpiSGD(levels, tier, row) if row.holds == "gradients" else ServerSGD(levels, tier, row)


def check_numbers(record: Rule | Clock | None) -> None:
    """Raise ConfigError if a rule or clock has a number that is out of its bounds, or none at all."""
    if not isinstance(record, msgspec.Struct):
        return
    for field, value in msgspec.structs.asdict(record).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{type(record).__name__} has {field}={value}: give a finite number")
    try:
        msgspec.convert(msgspec.to_builtins(record), type(record))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{record} cannot be used: {error}") from None


def _known(rule: Rule, name: str, rules: tuple[type[AnyRule], ...]) -> AnyRule:
    if not isinstance(rule, rules):
        raise ConfigError(
            f"the rule {type(rule).__name__} has no meaning with the algorithm {name!r}: use one of "
            f"{', '.join(known.__name__ for known in rules)}"
        )
    return rule


def _with_clock(row: Row, name: str, clock: Clock | None) -> Row:
    """The row with this clock, if one is given. Raises ConfigError if the rule has no meaning with it."""
    clock = clock or row.clock
    if not isinstance(clock, row.rule.clocks):
        raise ConfigError(
            f"the clock {clock} has no meaning with the rule {type(row.rule).__name__} of the algorithm {name!r}: use "
            f"{' or '.join(known.__name__ for known in row.rule.clocks)}"
        )
    return msgspec.structs.replace(row, clock=clock)
