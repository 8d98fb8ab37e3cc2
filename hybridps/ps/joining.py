"""How groups join a running job, or meet those that were restarted: what all groups say about the job, what a launcher
asks its first server, and what a group asks all servers before an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from hybridps.config import PREFIX, Settings, to_environment
from hybridps.errors import ConfigError
from hybridps.ps.message import Count, JobName, Message, Number, TenantName, Token

MOST_JOINED = 32
"""The number of groups that may have joined a job at a time. Servers reserve room for so many."""

EQUAL = (
    *("algorithm", "backend", "racks", "alpha", "rho", "outer_rate", "outer_momentum", "tau", "trigger"),
    *("staleness", "chunk_bytes", "wire"),
)
"""Settings that a group must have equal with the job that it joins."""

Sizes = Annotated[tuple[Count, ...], Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=512)]
Lives = Annotated[dict[Number, Number], Meta(max_length=8192)]
"""Groups, with the life of each."""


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a group tells a server about its job.

    `sizes`: the workers of the groups that the job was started with. A group that has joined it gives the sizes of all
    groups up to itself.
    """

    sizes: Sizes = ()
    settings: Annotated[Mapping[Text, Text], Meta(max_length=64)] = {}
    """The settings of `EQUAL`, as environment variables. Defaults are left out."""
    servers: Annotated[tuple[Text, ...], Meta(max_length=1024)] = ()
    """The addresses of all servers, in order."""
    server: Number = 0
    """The place of this server among them."""
    ticket: Number | None = None
    """The secret that the first server gave to a group that has joined."""


class AskToJoin(Message, frozen=True, omit_defaults=True):
    """Groups of these sizes ask to join a job; without sizes, the sender only asks about the job. Answer: ToldToJoin.

    It is sent on a socket of its own, without Hello. Without a name it is about the only job of the tenant.
    """

    version: int
    job: JobName | None = None
    sizes: Annotated[tuple[Count, ...], Meta(max_length=MOST_JOINED)] = ()
    tenant: TenantName = ""
    token: Token = ""


class ToldToJoin(Message, frozen=True, omit_defaults=True):
    """The groups may join with these `numbers`. `ticket`: a secret for all of them. No group is let in without it."""

    job: str
    groups: Count
    """The number of groups that the job was started with."""
    terms: Terms
    """The terms of the job. `sizes` has all groups, by number, including those that have gone."""
    numbers: tuple[Number, ...] = ()
    ticket: Number = 0
    epoch: float = 0.0
    step: Number = 0
    """How far the job was, if its launcher knows."""


class EndOfGroup(Message, frozen=True, omit_defaults=True):
    """The processes of a group that has joined have ended. Answer: Alive.

    `returns`: whether the group is started again. `ticket`: that of the sender that asked for its number.
    """

    version: int
    job: JobName
    group: Number
    life: Number
    ticket: Number
    returns: bool = False
    tenant: TenantName = ""
    token: Token = ""


class Meet(Message, frozen=True, omit_defaults=True):
    """The group is between two steps, and meets the other groups that train in step with it (`Meetings`).

    Answer of the first server: Met, when all have come. The group then tells each other server the `number` of the
    meeting and what groups train from then on, before it asks for anything else. Answer: Done without chunks.
    """

    request: Number
    number: Annotated[int, Meta(ge=0, le=1 << 53)] = 0  # the server counts on from here
    trains: Lives = {}


class Met(Message, frozen=True, omit_defaults=True):
    """The groups have met. The fields are those of `hybridps.ps.model.Met`."""

    request: Number
    number: Number
    trains: Lives = {}
    newcomers: Annotated[tuple[Number, ...], Meta(max_length=8192)] = ()
    giver: Number | None = None
    finished: bool = False


def terms_of(settings: Settings, servers: tuple[str, ...]) -> Terms:
    """Return what the group with these settings tells servers about its job."""
    told = to_environment(settings)
    equal = {name: told[name] for field in EQUAL if (name := PREFIX + field.upper()) in told}
    # Long lists only matter to groups that join.
    short = len(servers) <= 64 and sum(map(len, servers)) <= 2048
    return Terms(settings.group_sizes or (), equal, servers if short else (), ticket=settings.ticket)


def agreed_settings(mine: Settings, job: str, terms: Terms) -> dict[str, str]:
    """Return the settings of `EQUAL` of a job, by field. Raises ConfigError, with both values, if `mine` differ."""
    told = to_environment(mine)
    for field in EQUAL:
        name = PREFIX + field.upper()
        theirs = terms.settings.get(name)
        if name in told and told[name] != theirs:
            raise ConfigError(
                f"{name} is {theirs or 'not set'} in job {job!r}, and {told[name]} here: leave it out to use that of "
                "the job"
            )
    return {name.removeprefix(PREFIX).lower(): text for name, text in terms.settings.items()}
