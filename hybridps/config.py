"""Settings: the one reader of environment variables.

Every field of `Settings` is set by the variable `HYBRIDPS_<FIELD>`. A name that begins with
`HYBRIDPS_` and is no setting is refused, with the nearest valid name.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from hybridps.errors import ConfigError

PREFIX = "HYBRIDPS_"
SECRETS = ("HYBRIDPS_CREDENTIALS",)
"""Variables that nobody else may see."""

AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job is told from outside. Frozen; equal on all ranks but for `group_index`."""

    algorithm: str | None = None
    """Name of the algorithm, a key of `hybridps.algorithms.ALGORITHMS`. Default: `sync`."""

    groups: AtLeastOne | None = None
    """Number of groups. Default: 1, or what `group_sizes` or the algorithm says."""

    group_sizes: tuple[AtLeastOne, ...] | None = None
    """Workers in each group, e.g. `3,1`. Default: as equal as possible."""

    workers_per_group: AtLeastOne | None = None
    """Workers in each group, the last group may have fewer. Default: as `groups` says."""

    group_index: NotNegative | None = None
    """Set by the launcher when each group is an MPI world of its own: which group this one is."""

    ranks_per_node: AtLeastOne | None = None
    """Treat every so many consecutive workers as a node. Default: the ranks that share memory."""

    backend: Literal["hybridps", "mxnet"] = "hybridps"
    """Whose parameter servers: those of hybridps, or MXNet's own (ps-lite) with the rules of hybridps in them."""

    servers: tuple[str, ...] = ()
    """Addresses of the parameter servers, e.g. `tcp://127.0.0.1:5555,tcp://127.0.0.1:5556`."""

    racks: AtLeastOne = 1
    """Racks: runs of groups that have servers of their own, which `servers` lists rack by rack, as many for each.
    For a rack server: the racks that meet at its parents."""

    rack_index: NotNegative = 0
    """For a rack server: its rack's number, from 0 on."""

    parents: tuple[str, ...] = ()
    """For a rack server: addresses of its parents, where the racks meet. `keys` are what it needs to talk to them."""

    server_threads: AtLeastOne | None = None
    """Threads of a server, which share the chunks. Default: the cores of its host, 4 at most."""

    server_cores: tuple[NotNegative, ...] = ()
    """Cores that the threads of a server are pinned to, in turn. Default: none."""

    check_finite: bool = True
    """Whether servers refuse values with NaN or Inf."""

    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Port on which a server tells its metrics over HTTP, in the form of Prometheus; 0 is any. Default: none."""

    metrics_bind: str = "127.0.0.1"
    """Address for that port. Whoever reaches it may read the names of tenants, jobs and tables, and their figures."""

    server_keys: str | None = None
    """Folder made by `hybridps keys`: a server lets in the tenants that are named there, and nobody else."""

    keys: str | None = None
    """Folder `for-NAME` of a tenant, made by `hybridps keys`: what a job needs to talk to its servers."""

    credentials: str | None = None
    """The same as one word, in the place of `keys`. Set by the launcher; never shown."""

    job: Name = "job"
    """Name of the job on its servers: jobs of different names never meet."""

    alpha: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Moving rate of Elastic SGD. Default: 0.9 / groups."""

    tau: AtLeastOne = 10
    """Steps between two exchanges of Elastic SGD."""

    chunk_bytes: Annotated[int, Meta(ge=1024, le=1 << 28, multiple_of=64)] = 4 << 20
    """Size of a chunk: the unit of transfer and of the server's work."""

    bucket_bytes: Annotated[int, Meta(ge=1024, multiple_of=64)] = 4 << 20
    """Gradients reduced in one collective operation, while backward still computes the others: in whole chunks."""

    connect_seconds: Seconds = 10.0
    """How long a server may take to answer a first message."""

    wire: Literal["exact", "float16"] = "exact"
    """What the nodes of a group send each other for gradients of float32 and float64."""

    collective: Literal["flat", "node", "library", "ring", "multi_ring", "halving_doubling"] | None = None
    """Algorithm of the collectives in a group, whatever the table of choices says."""

    collective_chunk_bytes: Annotated[int, Meta(ge=1024, le=1 << 28, multiple_of=64)] | None = None
    """Size of the chunks between the nodes of a group, whatever the table of choices says."""

    tuning: str | None = None
    """Table of choices that `hybridps tune` has measured, or `built-in`. Default: this host's, if there is one."""

    deterministic: bool = False
    """Only collectives whose order of summation does not depend on the MPI library or on a measured table."""

    deadline_seconds: Seconds = 600.0
    """How long any operation may wait for other ranks or groups, which may be validating or saving."""

    heartbeat_seconds: Seconds = 1.0
    """Time between two signs of life of a leader to its servers."""

    lost_seconds: Seconds = 10.0
    """A leader or server that gave no sign of life for so long is taken as lost."""

    run_folder: str | None = None
    """Where events are written. Default: nowhere."""

    quiet: bool = False
    """Do not print the resolved settings and notes on standard error."""

    @property
    def bytes_reduced_at_a_time(self) -> int:
        """About `bucket_bytes`: as many whole chunks of the servers, one at least."""
        return self.chunk_bytes * max(1, self.bucket_bytes // self.chunk_bytes)


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from environment variables (default: the ones of the process).

    Raises ConfigError for an unknown name or an unusable value.
    """
    environ = os.environ if environ is None else environ
    given = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    return make_settings({_field(name): text for name, text in given.items() if text != ""})


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from field names and values; text is converted as in environment variables."""
    converted = {}
    hints = get_type_hints(Settings, include_extras=True)
    for field, value in values.items():
        if field not in hints:
            raise ConfigError(_unknown(field))
        if isinstance(value, str) and "tuple" in str(hints[field]):
            value = [part.strip() for part in value.split(",") if part.strip()]
        try:
            converted[field] = msgspec.convert(value, hints[field], strict=False)
        except msgspec.ValidationError as error:
            reason = str(error).split(" - at ")[0].replace("Expected", "expected", 1)
            raise ConfigError(f"{PREFIX}{field.upper()}={_one_line(_text(value))!r} cannot be used: {reason}") from None
    return Settings(**converted)


def to_environment(settings: Settings) -> dict[str, str]:
    """The variables that make `load_settings` return these settings; defaults are left out."""
    default = Settings()
    return {
        PREFIX + field.upper(): _text(value)
        for field, value in msgspec.structs.asdict(settings).items()
        if value != getattr(default, field)
    }


def tuning_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where `hybridps tune` keeps the table of this host."""
    environ = os.environ if environ is None else environ
    cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "hybridps" / f"tuning-{socket.gethostname()}.json"


def without_secrets(settings: Settings) -> Settings:
    """What may be shown and written down."""
    return msgspec.structs.replace(settings, credentials=None)


def started_by_mpi(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process is a rank of an MPI launcher (Open MPI, MPICH, MVAPICH, SLURM's PMI or PMIx)."""
    environ = os.environ if environ is None else environ
    marks = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
    return any(mark in environ for mark in marks)


def mxnet_engine(environ: Mapping[str, str] | None = None) -> str:
    """The engine that MXNet was told to use; empty for its default."""
    environ = os.environ if environ is None else environ
    return environ.get("MXNET_ENGINE_TYPE", "")


def _field(name: str) -> str:
    return name.removeprefix(PREFIX).lower()


def _unknown(field: str) -> str:
    fields = Settings.__struct_fields__
    near = difflib.get_close_matches(field, fields, n=1, cutoff=0.0)
    return f"{PREFIX}{field.upper()} is no setting of hybridps; did you mean {PREFIX}{near[0].upper()}?"


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
