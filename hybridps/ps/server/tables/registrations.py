"""Who has joined a table, and who initialises it. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Iterable, Set

from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps.model import Admitted, Answer, Origin, Outcome
from hybridps.ps.server.tables.progress import Progress


class Registrations:
    """The groups of table `name` on one server, which has `chunks` chunks of it.

    The first server decides who initialises the centre: the lowest group that is expected, so that it does not
    depend on who comes first, or the next one if that group goes before all values are there. The other servers are
    told, so that one group initialises the table on all of them. `groups` are expected, but for those `gone` already.
    """

    def __init__(
        self, name: str, is_first_server: bool, chunks: int, progress: Progress, groups: int, gone: Iterable[int]
    ) -> None:
        self._name = name
        self._is_first_server = is_first_server
        self._chunks = chunks
        self._progress = progress
        self._expected = set(range(groups)) - set(gone)
        self._present: set[int] = set()
        self._dropped: set[int] = set()
        self._waiting: dict[int, Origin] = {}
        """Registrations that are not answered yet."""
        self._admitted: dict[int, Admitted] = {}
        """What each group was told."""
        self._initialiser: int | None = None
        self.initial: Origin | None = None
        """The request that brought the initial values."""
        self.initialised: set[int] = set()
        """Chunks whose initial values are there."""
        # Where there is nothing to initialise nobody waits; the first server still says who would do it.
        self.ready = not is_first_server and not chunks
        """Whether the centre is complete."""
        self.prepared = False
        """Whether the table has its memory: nobody is admitted before."""
        self.used = False
        """Whether a group has contributed since the centre was initialised."""

    @property
    def abandoned(self) -> bool:
        """Whether no group is registered."""
        return not self._present

    @property
    def unwanted(self) -> bool:
        """Whether all groups, also those that have not come yet, have had the table and dropped it."""
        return bool(self._dropped) and self._expected | self._present <= self._dropped

    @property
    def waits(self) -> bool:
        """Whether a registration is not answered yet."""
        return bool(self._waiting)

    @property
    def has_initial(self) -> bool:
        """Whether the initial values of all chunks are there."""
        return len(self.initialised) == self._chunks

    def register(self, origin: Origin, initialise: bool) -> list[Outcome]:
        """A group joins; it is answered when the centre is complete, or when it is the one to initialise it.

        `initialise`: the first server has made this group the initialiser.
        """
        group = origin.group
        if group in self._present:
            return self._register_again(origin)
        self._dropped.discard(group)
        if self._is_first_server:
            first = min(self._expected | {group})
            initialise = not self.ready and self._initialiser is None and group == first
        else:
            self._check_follows(initialise)
        self._present.add(group)
        self._expected.add(group)
        self._progress.join(group)
        self._waiting[group] = origin
        if initialise:
            self._begin(group)
        return self.release()

    def has(self, group: int) -> bool:
        """Whether a group is registered."""
        return group in self._present

    def drop(self, group: int) -> None:
        """A group is done with the table."""
        self._dropped.add(group)

    def leave(self, group: int) -> None:
        """A group left the job or is lost."""
        self._dropped.discard(group)
        self._expected.discard(group)

    def part(self, group: int) -> None:
        """A registered group takes part no longer."""
        self._present.discard(group)
        self._waiting.pop(group, None)
        self._admitted.pop(group, None)
        if group == self._initialiser and not self.has_initial:
            self._initialiser = self.initial = None

    def begin_without_absent(self, there: Set[int]) -> list[Outcome]:
        """Let one of the groups that are `there` initialise the centre, if the one that should has not come."""
        self._expected &= there
        return self.go_on()

    def refuse(self, error: HybridPSError) -> list[Outcome]:
        """The table cannot be made: whoever registered it hears why."""
        return [Answer(origin, None, error=error) for origin in self._waiting.values()]

    def go_on(self) -> list[Outcome]:
        """Answer registrations after a change; make the lowest group that is expected the initialiser, if none is."""
        first = min(self._expected, default=-1)
        if self._is_first_server and not self.ready and self._initialiser is None and first in self._waiting:
            self._begin(first)
        return self.release()

    def release(self) -> list[Outcome]:
        """Answer registrations: of the initialiser, and of those that waited for the centre and rounds under way."""
        if not self._waiting or not self.prepared:
            return []
        admitted = []
        for group, origin in [*self._waiting.items()]:
            begins = group == self._initialiser and self.initial is None
            if begins or (self.ready and group in self._progress.members):
                del self._waiting[group]
                self._admitted[group] = Admitted(origin, initialise=begins)
                admitted.append(self._admitted[group])
        return [*admitted]

    def check_usable(self, origin: Origin) -> None:
        """Raise ServerError unless the group may exchange."""
        if origin.group not in self._present or origin.group in self._waiting or not self.ready:
            raise ServerError(f"group {origin.group} has not finished to register table {self._name!r}")

    def check_initialiser(self, origin: Origin) -> None:
        """Raise ProtocolError unless the group is to bring initial values."""
        if self.ready or origin.group != self._initialiser or not self.prepared:
            raise ProtocolError(f"group {origin.group} is not the one to initialise table {self._name!r}")

    def _check_follows(self, initialise: bool) -> None:
        """Whether this server's state fits what the first server told the group."""
        if initialise and self.used and self._present:
            raise ServerError(
                f"table {self._name!r} is in use here, but unknown to the first server: "
                "was that one restarted? Restart the job, or all servers"
            )
        if not initialise and not self.ready:
            raise ServerError(
                f"table {self._name!r} has no centre here, but on the first server: "
                "was this one restarted? Restart the job, or all servers"
            )

    def _begin(self, group: int) -> None:
        """A group becomes the initialiser."""
        self._initialiser, self.initial = group, None
        self.initialised = set()
        self.ready = not self._chunks
        self.used = False

    def _register_again(self, origin: Origin) -> list[Outcome]:
        """The same request may come again: it is told the same, at once or when it is its turn."""
        told = self._admitted.get(origin.group)
        if told is not None and told.origin == origin:
            return [told]
        if self._waiting.get(origin.group) != origin:
            raise ProtocolError(f"group {origin.group} registers table {self._name!r} twice")
        return []
