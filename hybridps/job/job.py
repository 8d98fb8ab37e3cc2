"""A job: the session, its servers, and the algorithms that run on them."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from types import TracebackType

from hybridps.algorithms import Algorithm, Row, choose_row, definition, make_algorithm
from hybridps.algorithms.choose import choose_name
from hybridps.errors import ConfigError, DeadlineError, GroupError, HybridPSError, ServerError
from hybridps.events import AlgorithmChosen, Closed
from hybridps.gossip import Partners
from hybridps.gossip.start import start_partners
from hybridps.job.levels import make_levels
from hybridps.job.servers import connect, end_if_idle, silent_workers
from hybridps.job.servers_trace import ServersTrace, trace_servers
from hybridps.mpi_groups.group import Group, allgather
from hybridps.mpi_groups.servers_view import ServersView
from hybridps.mpi_groups.session import Session, agree
from hybridps.processes import ServerProcess
from hybridps.progress import ALONE, TOGETHER
from hybridps.ps.client import Client
from hybridps.ps.clocks import Clock
from hybridps.ps.model import UnknownClientError
from hybridps.ps.rules import Rule
from hybridps.ps.store import OpenStore, ParameterStore
from hybridps.resuming import notice
from hybridps.tensor_collectives import Levels, SignsOfLife
from hybridps.tiers import GossipTier, NoTier, Rejoining, ServersTier, Tier
from hybridps.watch import Watcher


class Job:
    """One rank's part in a job. `open_job` makes it; it is a context manager.

    All algorithms of the job share the rank's group, its levels, and the leader's connection with the servers or with
    the other groups. These are made when the first algorithm needs them. Leaving the context with an exception ends all
    ranks of this MPI world.
    """

    def __init__(
        self, session: Session, servers: tuple[str, ...], embedded: ServerProcess | None, open_store: OpenStore
    ) -> None:
        self.session = session
        self.servers = servers
        self._embedded = embedded
        self._open_store = open_store
        self._algorithms = 0
        """The number of algorithms made so far. Each has tables of its own."""
        self._in_step = False
        """Whether any of the algorithms waits for all groups in each round."""
        self._levels: Levels | None = None
        self._signs: SignsOfLife | None = None
        self._store: ParameterStore | None = None
        self._partners: Partners | None = None
        """On a leader, once there is an algorithm that gossips."""
        self._gossip_tier: GossipTier | None = None
        """The latest tier of an algorithm that gossips."""
        self._servers_trace: ServersTrace | None = None
        """On a leader, if the job is traced."""
        self._connected: set[str] = set()
        """The kinds of tiers that are connected."""
        self._session_number: int | None = None
        """The number of the group's session at its servers."""
        self.watcher: Watcher | None = None
        """On the first worker, if no launcher watches the run."""
        self._closed = False
        settings = session.settings
        self._rejoining = Rejoining(
            possible=bool(servers) and settings.backend == "hybridps" and settings.racks < 2,
            waits=settings.rejoins,
            deadline_seconds=settings.deadline_seconds,
            announce=lambda: session.tell_launcher(ALONE),
        )
        session.servers_view = ServersView(self._bytes, self._counted, self._behind)

    @property
    def workers(self) -> int:
        """The number of workers of all groups, including those expected or finished.

        It changes in the same step on all ranks of a group.
        """
        return self.session.headcount.read_workers()

    @property
    def worker(self) -> int:
        """The number of this worker in the whole job, from 0."""
        return self.session.place.worker

    @property
    def steps(self) -> int:
        """The number of steps done, for the record."""
        return self.session.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self.session.steps = steps

    def _bytes(self) -> tuple[int, int]:
        """Return the payload bytes that this rank has sent to servers or other groups, and received from servers."""
        sent, received = 0, 0
        if self._store is not None:
            sent, received = self._store.bytes_to_servers, self._store.bytes_from_servers
        if self._partners is not None:
            sent += self._partners.bytes_sent
        return sent, received

    def _behind(self) -> int | None:
        """Return the group furthest behind the others at the servers, on a leader; None if none is."""
        return self.client.session.heartbeat.behind if self.client is not None else None

    def _counted(self) -> tuple[int, int] | None:
        """Return the numbers of groups and workers that the servers of one rack know; None where these never change.

        Groups in step would learn of a change in different steps, and divide the same sum by different numbers.
        """
        client = self.client
        if client is None or self._in_step or self.session.settings.racks > 1:
            return None
        return client.session.counted

    @property
    def client(self) -> Client | None:
        """The connection with servers of hybridps, on leaders once there is an algorithm. One thread may use it."""
        return self._store if isinstance(self._store, Client) else None

    def silent_workers(self, seconds: float) -> list[int]:
        """Return the workers whose groups have given the servers no sign of life for longer than `seconds`.

        Any worker may ask at any time, from any thread, once there is an algorithm; the others need not take part. With
        racks, these are workers of the own rack. Raises ServerError if the servers cannot be asked. Where groups
        gossip, each leader knows the answer; other ranks return what their leader knew at the last averaging.
        """
        if "gossip" in self._connected and self._session_number is None:
            return self._silent_partners(seconds)
        if not self.servers:
            return []
        if self._session_number is None:
            raise ServerError("MXNet's servers do not report silent workers: unset HYBRIDPS_BACKEND")
        return silent_workers(self.session, self.servers, self._session_number, seconds)

    def algorithm(self, name: str | None = None, rule: Rule | None = None, clock: Clock | None = None) -> Algorithm:
        """Return an algorithm over this rank's group and, if there are servers, with tables of its own there.

        `rule` (of `hybridps.ps.rules`) and `clock` (of `hybridps.ps.clocks`) say what the servers do, and when, where
        the algorithm leaves that open. Every rank of the job must call this, in the same order; later calls are cheap.
        Close the algorithm to free its tables.

        Raises ConfigError, on all ranks of this MPI world, if `name` is unknown or contradicts the settings, if it
        needs other groups than the job has, if the rule, the clock or a number has no meaning there, or if the ranks
        ask for different things.
        """
        row = self._agree_on(name, rule, clock)
        averages_alone = row.sends == "weights" and not self.servers
        if self.session.plan.groups == 1 < self.workers and (averages_alone or definition(row.name).is_asynchronous):
            self.session.note(
                f"there is one group, so {row.name} does what sync does: set HYBRIDPS_GROUPS, or start it with "
                f"`hybridps run --groups {self.workers}`"
            )
        tau, wire = self.session.settings.tau, self.session.settings.wire
        if row.sends == "weights" and self.servers and wire != "exact" and self.worker == 0:
            self.session.note(
                f"HYBRIDPS_WIRE={wire} has no effect between groups and servers: {row.name} sends weights"
            )
        if row.sends == "gradients" and tau is not None and self.worker == 0:
            self.session.note(f"HYBRIDPS_TAU={tau} (--tau) has no effect: {row.name} sends gradients in each step")
        self._rejoining.takes_centre = self.session.settings.life > 0 and not row.trains_in_step
        levels = self._connect(row)
        tier = self._tier(row, levels.group, f"{self._algorithms}/")
        self._algorithms += 1
        self.session.events.emit(AlgorithmChosen(row.name))
        algorithm = make_algorithm(row, levels, tier, workers=self.session.plan.workers)
        if algorithm.trains_in_step and self.servers and not self._in_step:
            self.session.tell_launcher(TOGETHER)
        self._in_step |= algorithm.is_synchronous
        return algorithm

    def close(self) -> None:
        """End this rank's part in good order. Waits for all workers of this MPI world. Later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        if self._servers_trace is not None:
            self._servers_trace.close()
        if self.client is not None:
            self.client.close(early=notice.agreed)
        elif self._store is not None:
            self._store.close()
        if self._partners is not None:
            self._partners.leave()
        within = self._levels.bytes_moved if self._levels is not None else 0
        self.session.events.emit(Closed(self.steps, within, *self._bytes()))
        if self._levels is not None:
            self._levels.close()
            self._levels.group.free()
        self.session.world.farewell()
        if self._signs is not None:
            self._signs.close()
        if self._partners is not None:
            self._partners.close()
        if self._embedded is not None:
            self._embedded.stop()
        if self.watcher is not None:
            self.watcher.close()
        self.session.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.end_if_failed(error)
        self.close()

    def _agree_on(self, name: str | None, rule: Rule | None, clock: Clock | None) -> Row:
        """Return what all workers of this MPI world ask for. Raises ConfigError, on all of them, if that cannot be.

        Raises DeadlineError or GroupError if a worker does not ask for an algorithm.
        """
        settings, plan = self.session.settings, self.session.plan
        row, problem = None, None
        try:
            short = choose_name(name, settings, plan.group_sizes)
            groups = settings.joins or plan.groups  # alpha of a table follows from the groups that began the job
            row = choose_row(short, settings, groups, bool(self.servers), rule, clock)
            if row.tier != "gossip" and plan.groups > 1 and not self.servers:
                raise ConfigError(
                    f"the algorithm {short!r} needs a server, and this job of {plan.groups} groups was started without "
                    "one, to gossip: set HYBRIDPS_ALGORITHM to it, or start it with `hybridps run --servers 1`"
                )
        except ConfigError as error:
            problem = error
        try:
            agree(self.session.workers, problem)
            rows: list[Row] = allgather(self.session.workers, row, Row)
        except (DeadlineError, GroupError) as error:
            made = "The waiting rank has made a store or algorithm, which all workers must make"
            raise type(error)(f"{error}. {made}") from None
        for other in rows:
            if other != rows[0]:
                raise ConfigError(
                    f"the workers ask for different algorithms, {rows[0]} and {other}: give all ranks the same name, "
                    "rule and clock"
                ).on_all_ranks()
        return rows[0]

    def _connect(self, row: Row) -> Levels:
        """Return the levels. The first call for a kind of tier connects the leaders. All ranks call this."""
        if self._levels is None:
            self._levels = make_levels(self.session)
            self._signs = SignsOfLife(self._levels, self.session)
        if row.tier not in self._connected:
            self._connected.add(row.tier)
            error = None
            try:
                self._reach(row)
            except HybridPSError as problem:
                error = problem
            agree(self.session.workers, error)
            number = None if self.client is None else self.client.session.number
            self._session_number = allgather(self._levels.group, number, int | None)[0]
            self._give_signs_of_life()
        return self._levels

    def _reach(self, row: Row) -> None:
        """Connect with servers, or with the other groups. Raises HybridPSError, perhaps on some ranks only."""
        if row.tier == "gossip" and self.session.plan.groups > 1:
            self._partners = start_partners(self.session)
        elif row.tier != "gossip" and self.servers and self.session.place.is_leader:
            self._store = connect(self.session, self.servers, self._open_store, row.name)
            if self.client is not None and self.session.trace.process is not None:
                self._servers_trace = trace_servers(self.session, self.client, self.servers)

    def _give_signs_of_life(self) -> None:
        """Have the leader tell servers and other groups how long any rank of its group has been silent."""
        if self._signs is None:
            return
        if self._partners is not None:
            self._partners.silent_seconds = self._signs.silence
        if self.client is not None:
            self._signs.failure = self.client.session.heed(self._signs.silence)
            self.session.watchdog.check = partial(end_if_idle, self.session, self._signs.failure)
        elif self._signs.watches_leader and self._session_number is not None:
            self._signs.failure = self._why_lost

    def _why_lost(self) -> HybridPSError | None:
        """Return the error of servers that have taken this group as lost; None if they have not, or cannot be asked."""
        try:
            self.silent_workers(self.session.settings.lost_seconds)
        except UnknownClientError as error:
            return error
        except ServerError:
            pass
        return None

    def _silent_partners(self, seconds: float) -> list[int]:
        plan = self.session.plan
        if self._partners is not None:
            silent = self._partners.silent(seconds)
        else:
            silences = self._gossip_tier.silences if self._gossip_tier is not None else ()
            silent = [group for group, silence in enumerate(silences) if silence > seconds]
        first = [*accumulate(plan.group_sizes, initial=0)]
        return [worker for group in silent for worker in range(first[group], first[group + 1])]

    def _tier(self, row: Row, group: Group, prefix: str) -> Tier:
        if row.partnership is not None and self.session.plan.groups > 1:
            self._gossip_tier = GossipTier(group, self._partners, row.partnership, self.session.plan.groups, prefix)
            return self._gossip_tier
        if self.servers and row.tier != "gossip":
            return ServersTier(group, self._store, prefix, self._rejoining)
        return NoTier(group)
