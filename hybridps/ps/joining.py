"""How groups join a job that runs: what all groups say of the job, and what a launcher asks its first server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from hybridps.config import PREFIX, Settings, to_environment
from hybridps.errors import ConfigError
from hybridps.ps.message import Count, JobName, Message, Number, TenantName, Token

MOST_JOINED = 32
"""Groups that have joined a job, at a time: servers have room for so many more."""

EQUAL = (
    *("algorithm", "backend", "racks", "alpha", "rho", "outer_rate", "outer_momentum", "tau", "trigger"),
    *("staleness", "chunk_bytes", "wire"),
)
"""Settings that groups have equal with the job that they join."""

Sizes = Annotated[tuple[Count, ...], Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=512)]


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a group says of its job as it comes to a server. `sizes`: workers of the groups that the job was started
    with, or, of a group that has joined it, of all up to itself."""

    sizes: Sizes = ()
    settings: Annotated[Mapping[Text, Text], Meta(max_length=64)] = {}
    """Those of `EQUAL`, as variables; defaults are left out."""
    servers: Annotated[tuple[Text, ...], Meta(max_length=1024)] = ()
    """Addresses of all servers, in order."""
    server: Number = 0
    """The place of this one among them."""
    ticket: Number | None = None
    """Of a group that has joined: what the first server gave it."""


class AskToJoin(Message, frozen=True, omit_defaults=True):
    """Groups of these sizes want to join a job; without sizes, they only ask about it. On a socket of its own, without
    Hello. Answer: ToldToJoin. Without a name it is the only job of the tenant."""

    version: int
    job: JobName | None = None
    sizes: Annotated[tuple[Count, ...], Meta(max_length=MOST_JOINED)] = ()
    tenant: TenantName = ""
    token: Token = ""


class ToldToJoin(Message, frozen=True, omit_defaults=True):
    """The groups may join as these `numbers`, with a `ticket` for all of them: a secret, which lets nobody else in."""

    job: str
    groups: Count
    """With which the job was started."""
    terms: Terms
    """Of the job. `sizes` are those of all groups, by their numbers, also of those that have gone."""
    numbers: tuple[Number, ...] = ()
    ticket: Number = 0
    epoch: float = 0.0
    step: Number = 0
    """What the job had done, if its launcher knows."""


class EndOfGroup(Message, frozen=True, omit_defaults=True):
    """The processes of a group that has joined have ended; it is started again (`returns`), or not. `ticket`: who asked
    for its number. Answer: Alive."""

    version: int
    job: JobName
    group: Number
    life: Number
    ticket: Number
    returns: bool = False
    tenant: TenantName = ""
    token: Token = ""


def terms_of(settings: Settings, servers: tuple[str, ...]) -> Terms:
    """What the group of these settings says of its job."""
    told = to_environment(settings)
    equal = {name: told[name] for field in EQUAL if (name := PREFIX + field.upper()) in told}
    # Long ones only matter to those that join.
    short = len(servers) <= 64 and sum(map(len, servers)) <= 2048
    return Terms(settings.group_sizes or (), equal, servers if short else (), ticket=settings.ticket)


def agreed_settings(mine: Settings, job: str, terms: Terms) -> dict[str, str]:
    """The settings of `EQUAL` of a job, by their fields. Raises ConfigError if mine say otherwise, with both."""
    told = to_environment(mine)
    for field in EQUAL:
        name = PREFIX + field.upper()
        theirs = terms.settings.get(name)
        if name in told and told[name] != theirs:
            raise ConfigError(
                f"{name} is {theirs or 'not set'} in job {job!r}, and {told[name]} here: leave it out, and it is that "
                "of the job"
            )
    return {name.removeprefix(PREFIX).lower(): text for name, text in terms.settings.items()}
