"""The settings of a job: one record, whose fields are the environment variables `HYBRIDPS_<FIELD>`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

LONGEST_SECONDS = 1_000_000
"""About 11 days. Every wait with a timeout in milliseconds can express it."""

BEATS_PER_LOST = 4
"""The least number of heartbeats within `lost_seconds`."""

RECONNECT_PER_DEADLINE = 0.75
"""The default of `reconnect_seconds`, as a share of `deadline_seconds`."""

USUAL_CHUNK_BYTES = 4 << 20
"""The default of `chunk_bytes`, except for gradients that are all reduced at once."""

USUAL_BUCKET_BYTES = 4 << 20
"""The default of `bucket_bytes`, where communication can be hidden."""

AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a job. Frozen; equal on all ranks, except for `group_index`."""

    algorithm: str | None = None
    """Name of the algorithm: a key of `hybridps.algorithms.ALGORITHMS`, or one of another package. Default: `sync`."""

    groups: AtLeastOne | None = None
    """Number of groups. Default: 1, unless `group_sizes` or the algorithm implies more."""

    group_sizes: tuple[AtLeastOne, ...] | None = None
    """Workers in each group, e.g. `3,1`. Default: as equal as possible."""

    workers_per_group: AtLeastOne | None = None
    """Workers in each group; the last group may have fewer. Default: derived from `groups`."""

    group_index: NotNegative | None = None
    """Index of this group. Set by the launcher, which starts each group as an MPI world of its own."""

    ranks_per_node: AtLeastOne | None = None
    """Treat this many consecutive workers as a node. Default: the ranks that share memory."""

    backend: Literal["hybridps", "mxnet"] = "hybridps"
    """Parameter servers to use: those of hybridps, or MXNet's own (ps-lite), which then run the rules of hybridps."""

    servers: tuple[str, ...] = ()
    """Addresses of the parameter servers, e.g. `tcp://127.0.0.1:5555,tcp://127.0.0.1:5556`."""

    racks: AtLeastOne = 1
    """Number of racks. A rack is a range of groups with servers of its own; `servers` lists them rack by rack, the same
    number for each. For a rack server: the number of racks that share its parents."""

    rack_index: NotNegative = 0
    """For a rack server: the index of its rack, from 0."""

    parents: tuple[str, ...] = ()
    """For a rack server: addresses of its parents, which combine the racks. `keys` authenticate it to them."""

    server_threads: AtLeastOne | None = None
    """Threads of a server, which share the chunks. Default: the cores of its host, at most 4."""

    server_cores: tuple[NotNegative, ...] = ()
    """Cores that the threads of a server are pinned to, in turn. Default: none."""

    check_finite: Literal["warn", "refuse", "ignore"] = "warn"
    """What happens when gradients contain NaN or Inf: one warning with the worker, key and step; the end of the job; or
    nothing. NaN and Inf are always refused in values that groups share (a centre, weights on servers)."""

    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Port on which a server exposes Prometheus metrics over HTTP; 0 is any free port. Default: no metrics."""

    metrics_bind: str = "127.0.0.1"
    """Host on which metrics are exposed. Anyone who can connect can read the names of tenants, jobs and tables."""

    snapshots: str | None = None
    """Folder in which servers keep snapshots of their tables, and from which jobs start. Default: no snapshots."""

    snapshot_seconds: Seconds = 60.0
    """Time between two snapshots of a server."""

    server_keys: str | None = None
    """Folder made by `hybridps keys`. A server accepts only the tenants listed there."""

    keys: str | None = None
    """Folder `for-NAME` of a tenant, made by `hybridps keys`. It authenticates a job to its servers."""

    credentials: str | None = None
    """The contents of `keys` as one word, used instead of it. Set by the launcher; never shown."""

    job: Name = "job"
    """Name of the job on its servers. Jobs with different names share nothing."""

    alpha: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Moving rate of Elastic SGD. Default: 0.9 / groups."""

    rho: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """Ties the moving rate of Elastic SGD to the learning rate of the store's optimizer: alpha = learning rate * rho.
    Default: `alpha` applies."""

    outer_rate: Annotated[float, Meta(ge=0, le=1e9)] = 0.7
    """Rate of DiLoCo's outer optimizer."""

    outer_momentum: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """Momentum of DiLoCo's outer optimizer."""

    tau: AtLeastOne | None = None
    """Number of steps between two averagings of weights. Default: 10; `elastic` and `eamsgd` choose it themselves, from
    1 to 10, so that averaging takes at most a tenth of the time if 10 steps are enough for that."""

    trigger: str | None = None
    """When weights are averaged, e.g. `change:0.05,silence=100` or `budget:10MB/s`. Default: as set by `tau`."""

    staleness: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    """Number of steps that a group may be ahead of another in asynchronous SGD before it waits. Default: unlimited with
    `async`, 3 with `stale`."""

    topology: str | None = None
    """Which groups gossip with each other: `random`, `ring`, `exponential`, `regular` or `complete`; `random:7` for the
    seed 7. Default: `random`; `exponential` with `sgp`."""

    gossip: Literal["symmetric", "pull"] = "symmetric"
    """Which of two gossiping groups averages: both, or only the one that asks."""

    partners: Literal["in_turn", "fast"] = "in_turn"
    """Which partner a gossiping group asks next: the next one of the topology, or more often those that answer fast."""

    peers: tuple[str, ...] = ()
    """Addresses of all groups, by group number, if they gossip and are MPI worlds of their own. Each group listens at
    its own address. Set by the launcher. Groups on several hosts need `keys`."""

    chunk_bytes: Annotated[int, Meta(ge=1024, le=1 << 28, multiple_of=64)] | None = None
    """Size of a chunk: the unit of transfer and of work on the servers. Default: 4194304. Gradients that are reduced
    all at once, and that the servers only sum, have chunks of up to 16777216, the same number for each core."""

    bucket_bytes: Annotated[int, Meta(ge=1024, multiple_of=64)] | None = None
    """Size of the gradients that one collective operation reduces while backward computes the rest, in whole chunks.
    Default: 4194304; all gradients at once if the whole job is on one host and has a worker for each core. Nothing can
    be hidden then, because what communicates keeps another worker from computing."""

    connect_seconds: Seconds = 10.0
    """Longest time that a server may take to answer the first message."""

    wire: Literal["exact", "float16", "bfloat16"] = "exact"
    """Encoding of float32 and float64 gradients between the nodes of a group, and between groups and servers that sum
    gradients, but do not update the weights. Half precision is sent to every server, even to one that could share
    memory with the group."""

    collective: Literal["flat", "node", "library", "ring", "multi_ring", "halving_doubling"] | None = None
    """Algorithm of the collectives in a group. Default: chosen by the tuning table."""

    collective_chunk_bytes: Annotated[int, Meta(ge=1024, le=1 << 28, multiple_of=64)] | None = None
    """Size of the chunks between the nodes of a group. Default: chosen by the tuning table."""

    tuning: str | None = None
    """Tuning table that `hybridps tune` measured, or `built-in`. Default: the table of this host, if there is one."""

    deterministic: bool = False
    """Use only collectives whose order of summation does not depend on the MPI library or on a measured table."""

    start_seconds: Seconds = 120.0
    """Longest time that `mpirun` may take to start the ranks of a group. Only `hybridps run` uses it."""

    deadline_seconds: Seconds = 1200.0
    """Longest time that any operation waits for other ranks or groups, which may be validating or saving."""

    heartbeat_seconds: Seconds = 1.0
    """Time between two heartbeats of a leader to its servers; at most a quarter of `lost_seconds`. Other ranks give
    their leader signs of life equally often."""

    lost_seconds: Seconds = 10.0
    """Time without a sign of life after which a group counts as lost, or a server as away."""

    reconnect_seconds: Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)] | None = None
    """How long a group waits for a server that is away, and a server for a job whose groups are all silent. With 0,
    both give up after `lost_seconds`. Default: three quarters of `deadline_seconds`."""

    awaits_refusing: bool = True
    """Whether to wait for a server that is away although its host refuses connections, because it may be restarted. Set
    by the launcher, which restarts its own servers where it can."""

    workers_on_host: AtLeastOne | None = None
    """The number of workers of the job on this host, in all groups. Set by the launcher."""

    launch: Name | None = None
    """Identifies the launch that a process belongs to. Set by the launcher."""

    joins: AtLeastOne | None = None
    """For a group that joined the job later: the number of groups that the job was started with. Set by the
    launcher."""

    ticket: NotNegative | None = None
    """Admits a group that joins the job after its start. Set by the launcher; never shown."""

    notice_seconds: Seconds | None = None
    """How long a group may continue after it is told to leave, by `hybridps run` or by SIGTERM to a rank. Default:
    groups are not told; they are ended."""

    life: NotNegative = 0
    """How often the group of this process was restarted. Set by the launcher."""

    resume_epoch: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Epochs that the job had done when this group was restarted. Set by the launcher."""

    resume_step: NotNegative = 0
    """Steps that the job had done when this group was restarted. Set by the launcher."""

    rejoins: bool = False
    """Whether the other groups train, in step, and this group was restarted to rejoin them. Set by the launcher."""

    live_folder: str | None = None
    """Folder of the small files that `hybridps top` reads. Set by the launcher. Default: `live` in the run folder, or
    else a folder of this user in the system's temporary folder."""

    tensorboard: str | None = None
    """Folder for TensorBoard scalars, written by the launcher, or without one by the first worker. Default: no
    scalars."""

    worker_metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Port on which the launcher, or without one the first worker, exposes Prometheus metrics of all workers, on
    `metrics_bind`; 0 is any free port. Default: no metrics."""

    slow_factor: Annotated[float, Meta(gt=1, le=1000)] = 1.5
    """A worker is reported as slow if its own part of a step takes this many times as long as that of the others."""

    run_folder: str | None = None
    """Folder for the events of a run. Default: events are not written."""

    trace: bool = False
    """Whether each worker writes a trace of its steps to the run folder, and each leader one of the servers."""

    trace_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 34)] = 16 << 20
    """Size of the trace of each worker, and of that of the servers. New steps replace the oldest ones."""

    quiet: bool = False
    """Do not print the resolved settings and notes on standard error."""

    @property
    def longest_away_seconds(self) -> float:
        """The longest time that a server may be away: `reconnect_seconds`, or its default."""
        given = self.reconnect_seconds
        return RECONNECT_PER_DEADLINE * self.deadline_seconds if given is None else given

    @property
    def is_crowded(self) -> bool:
        """Whether this host has more workers of the job than cores."""
        return (self.workers_on_host or 1) > (os.cpu_count() or 1)

    @property
    def beat_seconds(self) -> float:
        """The time between two heartbeats: `heartbeat_seconds`, or less as `lost_seconds` demands."""
        return min(self.heartbeat_seconds, self.lost_seconds / BEATS_PER_LOST)

    @property
    def usual_chunk_bytes(self) -> int:
        """`chunk_bytes`, or its default."""
        return self.chunk_bytes or USUAL_CHUNK_BYTES

    def bytes_reduced_at_a_time(self, is_full: bool) -> int:
        """Return `bucket_bytes` or its default, in whole chunks; at least one. `is_full`: as `Session.is_full`."""
        usual = sys.maxsize if is_full else USUAL_BUCKET_BYTES
        return self.usual_chunk_bytes * max(1, (self.bucket_bytes or usual) // self.usual_chunk_bytes)


def without_secrets(settings: Settings) -> Settings:
    """Return the settings that may be shown and written to files."""
    return msgspec.structs.replace(settings, credentials=None, ticket=None)
