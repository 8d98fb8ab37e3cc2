"""The other groups as the leader of a group sees them: letters, signs of life, and the barrier of all groups.

A thread of its own reads the mail. So a group gives initial values and signs of life to others while it computes.
Letters about weights wait for the next averaging.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridps.config import Settings
from hybridps.errors import DeadlineError, ProtocolError
from hybridps.gossip.inbox import Inbox, Incoming
from hybridps.gossip.joining import Tables
from hybridps.gossip.letter import ANSWERS, REQUESTS, WITH_VALUES, Kind, Letter, decode, encode
from hybridps.gossip.mail import Mail
from hybridps.gossip.peers import Peer, Peers
from hybridps.memory import Layout

_NAPS_SECONDS = 0.0005, 0.005
"""The shortest and the longest pause between two reads of the mail: after a letter, and after a while without
letters."""


class Partners:
    """All other groups. It owns the mail.

    The thread of the group that communicates calls the public methods, which also raise the errors of the reading
    thread.
    """

    def __init__(self, mail: Mail, settings: Settings) -> None:
        self.rank = mail.rank
        self.size = mail.size
        self.deadline_seconds = settings.deadline_seconds
        self.bytes_sent = 0
        """The payload bytes about weights that were sent."""
        self.refused = 0
        """The number of letters that were dropped because they could not be used."""
        self.silent_seconds: Callable[[], float] = lambda: 0.0
        """Returns for how long some rank of this group has given no sign of life. The group then gives none to
        others."""
        self.session = time.time_ns()
        self.peers = Peers(mail.rank, mail.size, settings)
        self.changed = threading.Condition(threading.RLock())
        """Guards all attributes against the other thread. It is notified when letters have arrived."""
        self.tables = Tables(self)
        self._mail = mail
        self._inboxes: dict[str, Inbox] = {}
        self._trains = False
        """Whether this group has averaged."""
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hybridps-gossip", daemon=True)
        mail.expect(1 << 22)
        self._thread.start()

    def post(self, to: int, kind: Kind, table: str = "", payload: np.ndarray | None = None, **fields: Any) -> bool:
        """Send a letter. Returns False if too many letters wait for that group."""
        header = encode(Letter(kind, self.session, table, **fields))
        with self.changed:
            sent = self._mail.send(to, header, payload)
            if sent and payload is not None and kind in WITH_VALUES:
                self.bytes_sent += payload.nbytes
            if sent and kind in REQUESTS and table in self._inboxes:
                self._inboxes[table].asked.add((to, fields["number"]))
            return sent

    def expect(self, nbytes: int) -> None:
        """Allow payloads of `nbytes` bytes from now on."""
        with self.changed:
            self._mail.expect(nbytes)

    def open(self, table: str, layout: Layout) -> None:
        """Keep letters about a table from now on."""
        with self.changed:
            self._mail.expect(layout.nbytes)
            self._inboxes[table] = Inbox(layout)

    def drop(self, table: str) -> None:
        """Decline the letters that wait for a table, and those that arrive from now on."""
        with self.changed:
            self.tables.forget(table)
            inbox = self._inboxes.pop(table, None)
            for waits in inbox.letters if inbox is not None else ():
                self._decline(waits.sender, waits.letter)

    def take(self, table: str) -> tuple[list[Incoming], set[int]]:
        """Take the letters about a table that have arrived, and the groups that have begun a new life.

        The table counts as begun from now on.
        """
        with self.changed:
            self._check()
            inbox = self._inboxes[table]
            if not inbox.has_begun:
                inbox.has_begun = self._trains = True
                self.tables.begin(table)
            letters = list(inbox.letters)
            inbox.letters.clear()
            return letters, inbox.returned

    def put_back(self, table: str, letters: list[Incoming]) -> None:
        """Put back letters that could not be answered yet. The next `take` returns them first."""
        with self.changed:
            self._inboxes[table].letters.extendleft(reversed(letters))

    def silent(self, seconds: float) -> list[int]:
        """Return the groups that have given no sign of life for longer than `seconds`. Any thread may call this.

        Groups that have ended are left out; those that never started are not.
        """
        with self.changed:
            silences = self.peers.silences()
        return [peer for peer, silence in enumerate(silences) if silence > seconds]

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition` holds. Returns whether it does within `seconds`."""
        end = time.monotonic() + seconds
        with self.changed:
            while not condition():
                self._check()
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(min(left, 0.05))
        return True

    def meet(self, is_ready: Callable[[], bool] = lambda: True) -> None:
        """Wait at a barrier of all groups, except those that have ended, are silent, or never started.

        A group that was started again counts the barriers that the others have passed as its own. Until it has
        averaged, it does not wait if there are any, because the others are in the middle of their training.

        `is_ready` is called until it returns true, before this group counts as arrived, and again while the group
        waits. Raises DeadlineError.
        """
        since = time.monotonic()
        in_time = self.until(is_ready, self.deadline_seconds)
        in_time &= self.until(lambda: self._is_told(since), self.deadline_seconds)
        with self.changed:
            if not self.peers.reached:
                passed = self.peers.passed_by_others()
                if passed and not self._trains:
                    return
                self.peers.reached = self.peers.passed = passed
            self.peers.reached += 1
            number = self.peers.reached
            for peer in self.peers:
                self.post(peer, "arrived", number=number)

        def awaited() -> list[int]:
            is_ready()
            late = (peer for peer, known in self.peers.items() if known.arrived < number)
            return [peer for peer in late if not self.peers.is_missing(peer, since)]

        if not (in_time and self.until(lambda: not awaited(), self.deadline_seconds)):
            raise DeadlineError(
                f"group {self.rank} waited {self.deadline_seconds:g} s at a barrier, because group "
                f"{min(awaited(), default=self.rank)} has not reached it"
            )
        with self.changed:
            self.peers.passed = number

    def leave(self) -> None:
        """Tell all groups that this one has ended. From now on it declines all requests."""
        with self.changed:
            for table in list(self._inboxes):
                self.drop(table)
            for peer, known in self.peers.items():
                if known.session and not known.left:
                    self.post(peer, "left")

    def close(self) -> None:
        """Stop the thread and close the mail, in bounded time. Call `leave` first."""
        self._ending.set()
        self._thread.join()
        self._mail.close()

    def _is_told(self, since: float) -> bool:
        """Return whether all groups that are there have told this one how many barriers they have passed."""
        return all(known.told is not None or self.peers.is_missing(peer, since) for peer, known in self.peers.items())

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The methods below run on the reading thread, with the lock held. `drop` calls `_decline` too.

    def _run(self) -> None:
        nap, longest = _NAPS_SECONDS
        while not self._ending.wait(nap):
            try:
                with self.changed:
                    came = self._read()
                    self._ask_for_signs_of_life()
                    self.changed.notify_all()
            except Exception as error:  # the next call of the other thread raises it
                self._failure = error
                return
            nap = _NAPS_SECONDS[0] if came else min(2 * nap, longest)

    def _read(self) -> int:
        """Read a bounded number of letters that have arrived. Returns how many there were."""
        for count in range(4 * self.size + 16):
            received = self._mail.receive()
            if received is None:
                return count
            try:
                self._hear(*received)
            except ProtocolError:
                self.refused += 1
        return 4 * self.size + 16

    def _hear(self, sender: int, header: bytes, payload: np.ndarray | None) -> None:
        letter, known = decode(header), self.peers[sender]
        if letter.session < known.session and not self.peers.is_silent(known):
            return  # from a former life
        if letter.session != known.session:
            known = self._begin_life(sender, letter.session)
        known.asked_at = None
        if letter.kind in ("ping", "pong", "arrived"):
            known.arrived = max(known.arrived, letter.number)
            if letter.kind == "pong" and letter.asker == self.session:
                known.told = letter.passed
            if letter.kind == "ping" and not self.silent_seconds():
                passed = self.peers.passed if known.has_returned else 0
                self.post(sender, "pong", number=self.peers.reached, asker=letter.session, passed=passed)
        elif letter.kind == "left":
            known.left = True
        elif letter.kind in ("ask", "give", "joined", "refuse"):
            self.tables.hear(sender, letter, payload)
        else:
            self._keep(sender, letter, payload)

    def _begin_life(self, sender: int, session: int) -> Peer:
        known = self.peers[sender]
        for inbox in self._inboxes.values():
            if inbox.has_begun and (known.session or sender < self.rank):
                # This includes a group that is first heard of now although it was to begin: it begins with its own
                # values.
                inbox.returned.add(sender)
            inbox.forget(sender)
        return self.peers.begin_life(sender, session)

    def _keep(self, sender: int, letter: Letter, payload: np.ndarray | None) -> None:
        inbox = self._inboxes.get(letter.table)
        if inbox is None:
            self._decline(sender, letter)
            return
        incoming = inbox.read(sender, letter, payload)
        if incoming is None or not inbox.has_room(sender, letter):
            self.refused += 1
            if incoming is not None:
                self._decline(sender, letter)
            return
        if letter.kind in ANSWERS:
            inbox.asked.discard((sender, letter.number))
        inbox.letters.append(incoming)

    def _decline(self, sender: int, letter: Letter) -> None:
        if letter.kind not in ANSWERS and not self.silent_seconds():
            self.post(sender, "decline", letter.table, number=letter.number)

    def _ask_for_signs_of_life(self) -> None:
        """Ask groups for a sign of life.

        The question is a sign of life itself, so a group that must give none does not ask.
        """
        for peer in self.peers.to_ask():
            if not self.silent_seconds():
                self.peers[peer].ask()
                self.post(peer, "ping", number=self.peers.reached)
