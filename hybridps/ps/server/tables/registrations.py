"""The groups that have joined a table, and which of them initialises it. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Set

from hybridps.errors import ProtocolError, ServerError
from hybridps.ps.clocks import Rounds
from hybridps.ps.model import Admitted, Origin, SnapshotStart
from hybridps.ps.server.tables.images import TableImage


class Registrations:
    """The groups of table `name` on one server, which has `chunks` chunks of it.

    The first server, the one with the table's first chunk, decides which group initialises the centre: the lowest one
    that is expected, whichever comes first, or the next one if that group goes before all values are there. The group
    tells the other servers, so that one group initialises the table on all of them. If the first server has a snapshot,
    no group initialises, and the others are told to start from the same one.
    """

    def __init__(self, name: str, is_first_server: bool, chunks: int, rounds: Rounds) -> None:
        self.rounds = rounds
        self._name = name
        self._is_first_server = is_first_server
        self._chunks = chunks
        self._expected = {*rounds.members}
        """Groups that are registered, or may still come."""
        self._dropped: set[int] = set()
        self.joined: dict[int, Origin] = {}
        """The groups that are registered, and their requests."""
        self._admitted: dict[int, Admitted] = {}
        """What each group was told; the other groups wait."""
        self._initialiser: int | None = None
        self.initial: Origin | None = None
        """The last request that brought initial values."""
        self.initialised: set[int] = set()
        """Chunks whose initial values are there."""
        # With nothing to initialise, nobody waits; the first server still says which group would do it.
        self.ready = not is_first_server and not chunks
        """Whether the centre is complete."""
        self.start: SnapshotStart | None = None
        """The snapshot that the centre is from, if it is from one."""
        self._tells_start = True
        """Whether the centre is certainly that of the snapshot as long as no round was computed."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change."""

    @property
    def image(self) -> TableImage:
        """The state of the registrations, to be kept."""
        return TableImage(
            self.rounds.members,
            self.rounds.joining,
            self.rounds.ended,
            self.rounds.late,
            self._expected,
            self._dropped,
            self.joined,
            self._admitted,
            self._initialiser,
            self.initial,
            self.ready,
            self.start,
        )

    def restore(self, image: TableImage) -> None:
        """Restore a state that was kept."""
        self.rounds.restore(image.members, image.joining)
        self.rounds.ended, self.rounds.late = image.ended, image.late
        self._expected, self._dropped = image.expected, image.dropped
        self.joined, self._admitted = image.joined, image.admitted
        self._initialiser, self.initial, self.ready = image.initialiser, image.initial, image.ready
        self.start, self._tells_start = image.start, False

    @property
    def unwanted(self) -> bool:
        """Whether all groups, including those that have not come yet, have had the table and dropped it."""
        return bool(self._dropped) and not self._expected

    @property
    def forsaken(self) -> bool:
        """Whether groups have left without dropping the table and none has it, so that its layout may change."""
        return not self.joined and not self._dropped

    @property
    def waits(self) -> bool:
        """Whether a registration is not answered yet."""
        return len(self.joined) > len(self._admitted)

    @property
    def has_initial(self) -> bool:
        """Whether the initial values of all chunks are there."""
        return len(self.initialised) == self._chunks

    def begin_from(self, start: SnapshotStart) -> None:
        """Take the centre from a snapshot, so that nobody initialises it."""
        self.start, self.ready = start, False
        self.on_change()

    def register(self, origin: Origin, initialise: bool, start: SnapshotStart | None = None) -> list[Admitted]:
        """Register a group. It is answered when the centre is complete, or when it is the one to initialise it.

        `initialise`: the first server has made this group the initialiser. `start`: the first server starts the table
        from that snapshot. A repeated request gets the same answer, at once or when it is its turn.
        """
        group = origin.group
        if group in self.joined:
            if self.joined[group] != origin:
                raise ProtocolError(f"group {group} registers table {self._name!r} twice")
            return [self._admitted[group]] if group in self._admitted else []
        if not self._is_first_server:
            self._check_follows(initialise, start)
        self._dropped.discard(group)
        self._expected.add(group)
        self.joined[group] = origin
        self.rounds.join(group)
        if self.rounds.computed:
            self.rounds.late.add(group)
        self.on_change()
        return [self._begin(group)] if initialise and not self._is_first_server else self.release()

    def leave(self, group: int, drops: bool, returns: bool = False) -> None:
        """Note that a group has left the job, is lost, or `drops` the table. `returns`: see `expect`."""
        self.expect(group, returns)
        self._dropped.discard(group)
        if drops:
            self._dropped.add(group)
        if group == self._initialiser:
            self._initialiser = group if self.has_initial else None
            self.initial = None
        self._admitted.pop(group, None)
        self.joined.pop(group, None)
        self.on_change()

    def come_back(self, origin: Origin) -> None:
        """Let a group that had joined by that request take part again."""
        self._dropped.discard(origin.group)
        self._expected.add(origin.group)
        self.joined[origin.group] = origin
        self._admitted[origin.group] = Admitted(origin, initialise=False)
        self.rounds.join(origin.group)
        self.on_change()

    def take_in(self, group: int) -> None:
        """Let a group that will register the table take part in its rounds from now on."""
        self._expected.add(group)
        self.rounds.join(group)
        self.on_change()

    def stop_expecting_if_dropped(self) -> None:
        """At a meeting: if groups have dropped the table and none has it, nobody will register it any more."""
        if self._dropped and not self.joined:
            self._expected.clear()
            self.on_change()

    def is_admitted(self, group: int) -> bool:
        """Return whether a group may exchange."""
        return self.ready and group in self._admitted

    def expect(self, group: int, returns: bool) -> None:
        """Note whether a group that has gone is started again. A table that it may use is kept for it.

        No table waits for it to be initialised; another group does that.
        """
        if returns and self.ready:
            self._expected.add(group)
        else:
            self._expected.discard(group)
        self.on_change()

    def begin_without_absent(self, there: Set[int]) -> list[Admitted]:
        """Let one of the groups that are `there` initialise the centre, if the one that should has not come."""
        self._expected &= there
        self.on_change()
        return self.release()

    def release(self) -> list[Admitted]:
        """Answer registrations after a change: the initialiser's, and those that waited for the centre or rounds."""
        first, admitted = min(self._expected, default=-1), []
        begins = self._is_first_server and not self.ready and self.start is None
        if begins and self._initialiser is None and first in self.joined:
            admitted.append(self._begin(first))
        if self.ready:
            waiting = self.joined.keys() - self._admitted.keys()
            admitted += [self._admit(group) for group in sorted(waiting & self.rounds.members)]
        return admitted

    def check_usable(self, origin: Origin) -> None:
        """Raise ServerError unless the group may exchange."""
        if origin.group not in self._admitted or not self.ready:
            raise ServerError(f"group {origin.group} has not finished registering table {self._name!r}")

    def check_initialiser(self, origin: Origin) -> None:
        """Raise ProtocolError unless the group is the one to bring initial values."""
        if self.ready or origin.group != self._initialiser:
            raise ProtocolError(f"group {origin.group} is not the one to initialise table {self._name!r}")

    def take_initial_of(self, origin: Origin) -> None:
        """Begin to take the initial values of a request. The group has the answer to its request before."""
        self.initial = origin
        self.on_change()

    def set_ready(self, ready: bool) -> None:
        """Set whether the centre is complete."""
        self.ready = ready
        self.on_change()

    def _check_follows(self, initialise: bool, start: SnapshotStart | None) -> None:
        """Raise ServerError if this server's state contradicts what the first server told the group."""
        problem = ""
        if initialise and any(self.rounds.brought.values()):
            problem = "is in use here, but unknown to the first server: was that one restarted?"
        elif start is not None and start != self.start:
            problem = "is in use here, and the first server starts it from a snapshot: was that one restarted?"
        elif not initialise and not self.ready and self.start is None:
            problem = "has no centre here, but on the first server: was this one restarted?"
        if problem:
            raise ServerError(f"table {self._name!r} {problem} Restart the job, or all servers")

    def _begin(self, group: int) -> Admitted:
        """Make a group the initialiser."""
        self._initialiser, self.initial, self.initialised, self.start = group, None, set(), None
        self.ready = not self._chunks
        return self._admit(group, initialise=True)

    def _admit(self, group: int, initialise: bool = False) -> Admitted:
        tells = self._is_first_server and self._tells_start and not self.rounds.computed
        start = self.start if tells else None
        self._admitted[group] = admitted = Admitted(self.joined[group], initialise, start=start)
        self.on_change()
        return admitted
