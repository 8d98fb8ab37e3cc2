"""The kinds of events. Each is a typed record, and a line of JSON in the run folder."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
"""A number of workers, groups or servers. The bound keeps a damaged file from requesting all memory."""
Whole = Annotated[int, Meta(ge=0, le=1 << 62)]
"""A number of bytes or steps."""


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    """Base class. A line has the class name in `event`, then the fields, `rank`, and `seconds` since the log began."""


class Configured(Event, frozen=True):
    """The job begins. `started_at` is the wall-clock time (seconds since 1970) at `seconds` = 0."""

    started_at: float
    settings: dict[str, Any]


class Planned(Event, frozen=True):
    """The role and place of this rank.

    `is_full`: whether the whole job is on one host and has a worker for each core, so that nothing can be hidden.
    """

    role: str
    worker: int
    workers: Count
    group: int
    groups: Count
    group_rank: int
    node: int
    servers: list[str]
    is_full: bool = False


class AlgorithmChosen(Event, frozen=True):
    """The job has chosen an algorithm. `algorithm` is its short name."""

    algorithm: str


class Registered(Event, frozen=True):
    """A table of the job was registered. `late`: the centre existed already, and the group took it over."""

    table: str
    rule: str
    keys: int
    nbytes: int
    late: bool


class Exchanged(Event, frozen=True):
    """A group exchanged weights. `nbytes`: the payload that it sent.

    `distance`: |w - centre| / |w|; None (or NaN, which JSON does not have) if that is not known.
    """

    table: str
    step: Whole
    took_seconds: float
    nbytes: Whole
    distance: float | None


class Skipped(Event, frozen=True):
    """A group left out an exchange of weights because a server was away. It trains alone."""

    table: str
    step: Whole


class Launched(Event, frozen=True):
    """`hybridps run` starts the workers now. `numbers`: those of its workers, if their groups join a job."""

    workers: Count
    groups: Count
    servers: Count
    command: list[str]
    numbers: list[Count] = []


class Evaluated(Event, frozen=True):
    """What a script reports about its model after `epoch` epochs; see `hybridps.progress`.

    `accuracy` and `centre_accuracy`: shares of `images` validation images. `step`: the steps done. None: not reported.
    """

    epoch: Annotated[float, Meta(ge=0)]
    accuracy: Share | None = None
    loss: float | None = None
    centre_accuracy: Share | None = None
    images: Annotated[int, Meta(ge=1)] | None = None
    worker: Annotated[int, Meta(ge=0)] | None = None
    group: int | None = None
    step: Whole | None = None

    def followed_by(self, later: Evaluated) -> Evaluated:
        """Return this report with what a later one of the same worker and epoch has."""
        given = {field: value for field in self.__struct_fields__ if (value := getattr(later, field)) is not None}
        return msgspec.structs.replace(self, **given)


class Restarted(Event, frozen=True):
    """A group is restarted after its earlier life ended with this exit status. `life`: the number of the new life.

    With status 0, it had finished, or the launcher stopped it so that all groups start together.
    """

    group: Count
    life: Count
    status: int
    anew: bool = False
    """Whether the job starts over, so that what was reported before no longer counts."""


class Joined(Event, frozen=True):
    """Groups have joined the job since its launch, or have left it. `joined`: the numbers of the joined groups that are
    there or on their way. `groups` and `workers`: those of the whole job.
    """

    joined: list[int]
    groups: Count
    workers: Count


class Counted(Event, frozen=True):
    """From this step on, the job has this many groups and workers, as the ranks of a group have agreed."""

    step: Whole
    groups: Count
    workers: Count


class Ended(Event, frozen=True):
    """The launch has ended with this exit status."""

    status: int


class Changed(Event, frozen=True):
    """The leader has measured the weights of a table, before the local update of a step.

    `change`: how far they have moved since the last exchange, relative to the weights that it left. `nbytes`: the size
    of all weights; `sent`: the size of those that were sent.
    """

    table: str
    step: int
    change: float
    nbytes: int
    sent: int


class Chosen(Event, frozen=True):
    """The algorithm of the group's collectives up to `up_to_bytes`. `source`: built-in, measured or forced."""

    algorithm: str
    chunk_bytes: int
    up_to_bytes: int
    source: str
    ranks: int
    nodes: int


class Communicated(Event, frozen=True):
    """The time that communication has taken since the model began, in `steps` steps; at most ten events a second.

    `group_seconds`: inside the group, including the wait for its ranks. `exchange_seconds`: waiting for the servers'
    answers and distributing them. `exposed_seconds`: after a step's last gradient, when backward no longer hides it.
    The bytes are the payload that this rank has sent to servers or to other groups, and received from servers.
    """

    steps: Whole
    group_seconds: float
    exchange_seconds: float
    exposed_seconds: float
    bytes_to_servers: Whole = 0
    bytes_from_servers: Whole = 0


class Paced(Event, frozen=True):
    """How long this rank takes for a step: medians over the steps since the last such event, at most 20 a second.

    `own_seconds`: from the end of the last step's communication to the arrival of this rank's last gradient, or from
    one step of its program to the next, without waits for sums, if that takes longer. It is at least the CPU time
    without that of the communication thread if each rank of the group has at most one core. The time in which the
    communication thread is ready and has no core, once the gradients are there, is part of it. `program_seconds`: the
    part of it before the program begins the step, for example while it waits for its loader; None where the program
    computes before it begins a step, as with NumPy. `waiting_seconds`: how much longer the slowest rank of the group
    takes for its own part. `mean_own_seconds`: the mean instead of the median.
    """

    steps: Whole
    step_seconds: float
    own_seconds: float
    program_seconds: float | None
    waiting_seconds: float
    mean_own_seconds: float | None = None


class Slowed(Event, frozen=True):
    """A worker is slower than the others of its group, whose median is `others_seconds`. Its leader writes this too.
    For a group that is slower than the other groups, the launcher writes this about its leader, with the `group`.

    `reason`: one of the words of `hybridps.live.slow`, as far as the reason is known.
    """

    worker: Annotated[int, Meta(ge=0)]
    steps: Whole
    own_seconds: float
    others_seconds: float
    reason: str
    group: Count | None = None

    @property
    def factor(self) -> float:
        """How many times as long as the others it takes. Finite: times below a microsecond count as one."""
        return self.own_seconds / max(self.others_seconds, 1e-6)


class Recovered(Event, frozen=True):
    """A worker that was reported as slow keeps up with the others again."""

    worker: Annotated[int, Meta(ge=0)]
    steps: Whole


class NotFinite(Event, frozen=True):
    """A worker's own gradient of a key had NaN or Inf in a step. Only the first one is reported.

    If the servers found it, the leader of the worker's group writes this.
    """

    key: str
    step: int
    worker: int


class Noted(Event, frozen=True):
    """A note for the user, for example about a fallback."""

    message: str


class Waited(Event, frozen=True):
    """The rank has waited this long for others, and goes on waiting: after a tenth of the deadline, and at its end."""

    what: str
    waited_seconds: float


class Failed(Event, frozen=True):
    """The rank ends its group because of this error. `everywhere`: all workers of the group have met the same one.

    `steps`: the number of steps that its program has begun.
    """

    error: str
    everywhere: bool = False
    steps: Whole = 0


class Closed(Event, frozen=True):
    """The rank has finished. The bytes are the payload that this rank passed to each tier."""

    steps: Whole
    bytes_within_group: Whole
    bytes_to_servers: Whole
    bytes_from_servers: Whole = 0
