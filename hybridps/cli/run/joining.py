"""A launch whose groups join a running job: what it asks the job's servers, and tells them when a group ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from hybridps.cli.run.plan import Launch
from hybridps.config import PREFIX, Settings, make_settings, to_environment
from hybridps.errors import ConfigError, ServerError
from hybridps.ps import wire
from hybridps.ps.client import ask
from hybridps.ps.joining import agreed_settings

_TELL_SECONDS = 2.0
_WAY_OUT = (
    "groups can join jobs of elastic, eamsgd, local, diloco, async and stale; otherwise, end the job, and start it "
    "again with more groups from a checkpoint"
)


def join(launch: Launch) -> Launch:
    """Return the launch with the answer of the job's first server: numbers for its groups, settings and servers.

    Raises ConfigError if its settings differ from those of the job or the job cannot be joined; ServerError if the
    server refuses or does not answer.
    """
    settings = launch.settings
    job = settings.job if settings.job != Settings().job else None
    known = _ask(settings, wire.AskToJoin(wire.VERSION, job))
    settings = _merged(launch, known)
    sizes = tuple(group.size for group in launch.groups)
    told = _ask(settings, wire.AskToJoin(wire.VERSION, known.job, sizes))
    settings = msgspec.structs.replace(settings, joins=told.groups, ticket=told.ticket)
    groups = tuple(replace(group, number=number) for group, number in zip(launch.groups, told.numbers, strict=True))
    return replace(launch, settings=settings, groups=groups, sizes=told.terms.sizes, done=(told.epoch, told.step))


def tell_end(launch: Launch, group: int, life: int, returns: bool) -> None:
    """Tell all servers that a life of a group has ended. A server that does not answer finds out by itself."""
    settings, number = launch.settings, launch.groups[group].number
    end = wire.EndOfGroup(wire.VERSION, settings.job, number, life, settings.ticket or 0, returns)
    for address in settings.servers:
        try:
            ask(address, end, settings, _TELL_SECONDS)
        except (ServerError, ConfigError):
            continue


def give_up(launch: Launch) -> None:
    """Tell all servers that the groups of a launch, which `join` returned, will not come."""
    for group in launch.groups:
        tell_end(launch, group.index, 1, returns=False)


def _merged(launch: Launch, known: wire.ToldToJoin) -> Settings:
    """Return the settings of the launch, completed by those of the job. Raises ConfigError if they do not fit."""
    from hybridps.algorithms import resolve

    settings, terms = launch.settings, known.terms
    agreed = agreed_settings(resolve(settings), known.job, terms)
    if reason := _why_closed(agreed):
        raise ConfigError(f"job {known.job!r} cannot be joined: it has {reason}: {_WAY_OUT}")
    servers = settings.servers
    if len(servers) == 1 and terms.servers:
        servers = terms.servers
    elif terms.servers and len(servers) != len(terms.servers):
        raise ConfigError(
            f"--join {','.join(servers)} has {len(servers)} addresses, and job {known.job!r} has {len(terms.servers)} "
            f"servers: give all in order, {','.join(terms.servers)}, or only the first"
        )
    values = {name.removeprefix(PREFIX).lower(): text for name, text in to_environment(settings).items()}
    return make_settings({**values, **agreed, "job": known.job, "servers": servers})


def _why_closed(agreed: Mapping[str, str]) -> str:
    """Return what a job with these settings has, so that no group can join it; empty if groups can.

    >>> _why_closed({"algorithm": "elastic"}), _why_closed({"algorithm": "elastic", "racks": "2"})
    ('', 'racks')
    """
    if agreed.get("racks"):
        return "racks"
    if backend := agreed.get("backend"):
        return f"the backend {backend}"
    algorithm = agreed.get("algorithm", "sync")
    return f"the algorithm {algorithm}, whose groups are in step" if algorithm in ("sync", "easgd") else ""


def _ask(settings: Settings, message: wire.AskToJoin) -> wire.ToldToJoin:
    """Return the answer of the first server. Raises ServerError if it does not answer, or refuses."""
    address = settings.servers[0]
    told = ask(address, message, settings, settings.connect_seconds)
    if not isinstance(told, wire.ToldToJoin):
        raise ServerError(f"{address} answered {type(told).__name__} to AskToJoin: it is not a server of this version")
    return told
