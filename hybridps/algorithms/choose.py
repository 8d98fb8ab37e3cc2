"""Make an algorithm from a name, a rule and a clock, and refuse combinations that have no meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import entry_points

import msgspec

from hybridps.algorithms import diloco, eamsgd, easgd, gosgd, gossip, local, mpi_esgd, mpi_sgd, server_sgd, sgp
from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.average_weights import AverageWeights
from hybridps.algorithms.mpi_sgd import MpiSGD
from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.algorithms.server_sgd import ServerSGD
from hybridps.config import Settings
from hybridps.errors import ConfigError, did_you_mean
from hybridps.ps.clocks import BoundedStale, Clock
from hybridps.ps.rules import Elastic, Outer, Rule
from hybridps.tensor_collectives import Levels
from hybridps.tiers import Tier
from hybridps.triggers import EventGrad, parse

KNOWN = {
    "sync": mpi_sgd.SYNC,
    "async": server_sgd.ASYNC,
    "stale": server_sgd.STALE,
    "elastic": mpi_esgd.ELASTIC,
    "easgd": easgd.EASGD,
    "eamsgd": eamsgd.EAMSGD,
    "local": local.LOCAL,
    "diloco": diloco.DILOCO,
    "gossip": gossip.GOSSIP,
    "gosgd": gosgd.GOSGD,
    "sgp": sgp.SGP,
}
"""The algorithms of this package, by their short names."""

ALGORITHMS = {name: name for name in KNOWN} | {also: name for name, found in KNOWN.items() for also in found.also}
"""Every name that a user may give to an algorithm of this package, with its short name. `dist-` names make each worker
a group of its own."""

OTHERS = "hybridps.algorithms"
"""The group of entry points through which other packages offer algorithms. Each one is a `Definition`, or a function
that makes a `Row` from an `Asked`."""

DEFAULT = "sync"


def short_name(given: str) -> str:
    """Return the short name of an algorithm. Raises ConfigError, with the nearest name, for an unknown one."""
    name = given.lower()
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    offered = entry_points(group=OTHERS).names
    if name in offered:
        return name
    nearest, known = did_you_mean(name, [*ALGORITHMS, *offered]), ", ".join([*KNOWN, *offered])
    raise ConfigError(f"algorithm {given!r} is unknown{nearest} Known: {known}")


def definition(name: str) -> Definition:
    """Return the algorithm with this short name. Raises ConfigError if another package's cannot be loaded."""
    return KNOWN[name] if name in KNOWN else _offered(name)


def resolve(settings: Settings, named: str | None = None) -> Settings:
    """Return the settings with the algorithm's short name, and with the groups that the algorithm implies.

    A `dist-` name always implies groups of one worker. `async`, `stale` and algorithms that gossip imply them unless
    the settings say something about groups. `named`: the algorithm that the script names, used if the settings name
    none. Raises ConfigError for an unknown algorithm or trigger.
    """
    if settings.trigger is not None:
        parse(settings.trigger)
    given = settings.algorithm or named
    if given is None:
        return settings
    short = short_name(given)
    found, of_groups = definition(short), (settings.groups, settings.group_sizes, settings.workers_per_group)
    implies = found.gossips or (found.is_asynchronous and given.lower() == short)
    says_groups = any(said is not None for said in (*of_groups, settings.group_index))
    if given.lower().startswith("dist-") or (implies and not says_groups):
        settings = msgspec.structs.replace(settings, workers_per_group=1)
    return settings if settings.algorithm is None else msgspec.structs.replace(settings, algorithm=short)


def choose_name(given: str | None, settings: Settings, group_sizes: Sequence[int]) -> str:
    """Return the short name of the algorithm that a script and the settings ask for.

    `given`: the name in the script. `group_sizes`: the sizes of the job's groups, which were made before the script
    named an algorithm. Raises ConfigError if the script contradicts the settings or the groups.
    """
    if given is None:
        return settings.algorithm or DEFAULT
    name = short_name(given)
    if settings.algorithm not in (None, name):
        raise ConfigError(
            f"the script asks for the algorithm {given!r}, and HYBRIDPS_ALGORITHM says {settings.algorithm!r}: "
            "drop one of the two (MXNet's type 'dist_hybridps' asks for none)"
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
    """Return the row of the algorithm with this short name, with the given rule and clock if they are not None.

    Raises ConfigError if the algorithm cannot use the rule, clock, trigger or a number, or lacks a rule or server.
    """
    for record in (rule, clock):
        check_numbers(record)
    found = definition(name)
    if rule is not None and found.rules and not isinstance(rule, found.rules):
        raise ConfigError(
            f"the rule {type(rule).__name__} has no meaning with the algorithm {name!r}: use one of "
            f"{', '.join(known.__name__ for known in found.rules)}"
        )
    asked = Asked(settings=settings, groups=groups, has_servers=has_servers, rule=rule, clock=clock)  # type: ignore[arg-type]
    try:
        row = found.make_row(asked)
    except ConfigError as error:
        raise ConfigError(f"the algorithm {name!r} cannot be used: {error}") from None
    row = msgspec.structs.replace(row, name=name)
    if not isinstance(row.clock, row.rule.clocks):
        raise ConfigError(
            f"the clock {row.clock} has no meaning with the rule {type(row.rule).__name__} of the algorithm {name!r}: "
            f"use {' or '.join(known.__name__ for known in row.rule.clocks)}"
        )
    _check_settings(row, settings)
    return row


def make_algorithm(row: Row, levels: Levels, tier: Tier, *, workers: int) -> Algorithm:
    """Make one rank's algorithm from a row of `choose_row`. `workers`: the workers of all groups together."""
    kind = definition(row.name).kind
    if kind is None:
        by_gradients = MpiSGD if row.holds == "gradients" else ServerSGD
        kind = AverageWeights if row.sends == "weights" else by_gradients
    return kind(levels, tier, row, workers)


def check_numbers(record: Rule | Clock | None) -> None:
    """Raise ConfigError if a number of a rule or clock is out of bounds or not finite."""
    if not isinstance(record, msgspec.Struct):
        return
    for field, value in msgspec.structs.asdict(record).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{type(record).__name__} has {field}={value}: give a finite number")
    try:
        msgspec.convert(msgspec.to_builtins(record), type(record))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{record} cannot be used: {error}") from None


def _check_settings(row: Row, settings: Settings) -> None:
    """Raise ConfigError for settings that have no meaning with the row or contradict each other."""
    trigger, tau = settings.trigger, settings.tau
    if trigger is not None and row.sends == "gradients":
        raise ConfigError(
            f"HYBRIDPS_TRIGGER={trigger!r} has no meaning with the algorithm {row.name!r}, which sends gradients in "
            "every step: leave it out, or use an algorithm that averages weights, such as elastic or local"
        )
    if trigger is not None and tau is not None:
        raise ConfigError(
            f"HYBRIDPS_TRIGGER={trigger!r} (--trigger, --budget) and HYBRIDPS_TAU={tau} (--tau) both say when weights "
            f"are averaged: give only one (every:{tau} is a trigger)"
        )
    if trigger is not None and not row.trigger.by_step and settings.backend == "mxnet":
        raise ConfigError(
            f"HYBRIDPS_TRIGGER={trigger!r} needs the servers of hybridps: unset HYBRIDPS_BACKEND, or use every:TAU"
        )
    _check_parts(row, settings)
    _check_unused(row, settings)
    if settings.rho is None:
        return
    if settings.alpha is not None:
        raise ConfigError(
            f"HYBRIDPS_RHO={settings.rho} and HYBRIDPS_ALPHA={settings.alpha} both say what alpha is: give only one "
            "(alpha = learning rate * rho)"
        )
    if row.rho is None or not isinstance(row.rule, Elastic):
        raise ConfigError(
            f"HYBRIDPS_RHO={settings.rho} has no meaning with the algorithm {row.name!r} and the rule "
            f"{type(row.rule).__name__}: leave it out, or use elastic, easgd or eamsgd with a rule that has alpha"
        )
    if settings.racks > 1 or settings.backend == "mxnet":
        raise ConfigError(
            f"HYBRIDPS_RHO={settings.rho} needs one rack and the servers of hybridps: set HYBRIDPS_ALPHA instead"
        )


def _check_parts(row: Row, settings: Settings) -> None:
    """Raise ConfigError for a trigger on parts of the weights where all weights must be exchanged together.

    Racks exchange all of them. With a bounded-stale clock, groups wait for each other's parts, which they may not have.
    """
    of_parts = isinstance(row.trigger, EventGrad) or getattr(row.trigger, "chunk", None) is not None
    if of_parts and settings.racks > 1:
        raise ConfigError(
            f"HYBRIDPS_TRIGGER={settings.trigger!r} decides on parts of the weights, and HYBRIDPS_RACKS="
            f"{settings.racks} servers exchange all of them: use a trigger for the whole model, or one rack"
        )
    if of_parts and isinstance(row.clock, BoundedStale):
        raise ConfigError(
            f"HYBRIDPS_TRIGGER={settings.trigger!r} decides on parts of the weights, and with the clock {row.clock} "
            "groups wait for parts of each other: use a trigger for the whole model, or another clock"
        )


def _check_unused(row: Row, settings: Settings) -> None:
    """Raise ConfigError for a setting that the row does not use."""
    usual, exchange = Settings(), row.partnership.exchange if row.partnership is not None else None
    outer = isinstance(row.rule, Outer) and (row.rule.rate, row.rule.momentum)
    unused = {
        "gossip": exchange in (None, "push"),
        "topology": exchange is None,
        "partners": exchange is None,
        "alpha": exchange is not None,
        "outer_rate": outer != (settings.outer_rate, settings.outer_momentum),
        "outer_momentum": outer != (settings.outer_rate, settings.outer_momentum),
    }
    for field, is_unused in unused.items():
        value = getattr(settings, field)
        if is_unused and value != getattr(usual, field):
            rule = f" and the rule {type(row.rule).__name__}" if field.startswith("outer") else ""
            raise ConfigError(
                f"HYBRIDPS_{field.upper()}={value} has no meaning with the algorithm {row.name!r}{rule}: leave it out"
            )


@lru_cache(maxsize=64)
def _offered(name: str) -> Definition:
    """Load the algorithm that another package offers by this name. Raises ConfigError if that fails."""
    found = next(iter(entry_points(group=OTHERS, name=name)), None)
    if found is None:
        raise ConfigError(f"no package offers the algorithm {name!r} any more: install it again")
    try:
        made = found.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the algorithm {name!r} of {found.value} cannot be loaded: {error}") from None
    if not isinstance(made, Definition) and not callable(made):
        raise ConfigError(f"the algorithm {name!r} of {found.value} is neither a Definition nor a function")
    return made if isinstance(made, Definition) else Definition(made)
