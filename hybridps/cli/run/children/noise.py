"""The messages of mpirun and of the MPI library about ranks that ended, in the output of a child."""

from __future__ import annotations

import re
import time

_DASHES = re.compile(r"-{60,}")
_JOINED = re.compile(r"(?P<line>.*[^-])(?P<dashes>-{74})")
"""A rank's line that has not ended when Open MPI prints its dashes."""

_EQUALS = re.compile(r"={79,}")
_MPICH = re.compile(r"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
_NOISE_LINE = re.compile(
    r"Abort is in progress\.\.\.hit ctrl-c again"
    r"|YOUR APPLICATION TERMINATED WITH THE EXIT S"
    r"|This typically refers to a problem with your application\.$"
    r"|Please see the FAQ page for debugging suggestions$"
)
_ABORTED = re.compile(
    r"Abort\(\d+\) on node (?P<rank>\d+) \(rank \d+ in comm \d+\): (?P<called>application called MPI_Abort\()?"
)
"""What MPICH and Intel MPI print for a rank that calls MPI_Abort, or that met a fatal error."""
_SIGNAL = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d+)\)$")
_NOISE_BLOCK = re.compile(
    r"\w+run noticed that process rank"
    r"|\w+run detected that one or more processes exited with non-zero status"
    r"|\w+run has exited due to process rank \d+ with PID \d+ on\s+node \S+ (calling \"abort\"|exiting\s+improperly)"
    r"|MPI_ABORT was invoked on rank"
    r"|Primary job\s+terminated normally, but"
)
_LOST = re.compile(r"[OP]RTE has lost communication with a remote daemon\..*Remote daemon: \S+ on node (?P<host>\S+)")
_REMOTE_HOST = re.compile(r"\s*Remote host:\s+(?P<host>\S+)$")
_NO_PROXY = re.compile(r"\[mpiexec@.*(Unable to run bstrap_proxy on (?P<host>\S+) |Launch proxy failed\.$)")
"""Intel MPI names the host, and MPICH does not."""
_VANISHED = re.compile(r"exiting\s+improperly")
_RANK = re.compile(r"(?:process rank|invoked on rank) (?P<rank>\d+)|Process name:\s+\[\S+,(?P<last>\d+)\]")


class NoiseFilter:
    """Drops mpirun's messages about ranks that ended, which the launcher reports itself, once.

    Open MPI writes blocks of lines between two lines of dashes. On standard output, MPICH and Intel MPI write an empty
    line and a block between two lines of equals signs, and some single lines. A block is held back until it is
    complete, or for `HOLD_SECONDS` or `HELD_LINES` lines; a block of another kind is then passed on unchanged. Blocks
    in dashes are examined only with `blocks`, empty lines only without it, and blocks in equals signs only if their
    first line is MPICH's.
    """

    HELD_LINES = 40
    HOLD_SECONDS = 1.0

    def __init__(self, *, blocks: bool = True) -> None:
        self.first_rank: int | None = None
        """The rank that ended first, if mpirun named one."""
        self.signal: int | None = None
        """The signal that ended a rank, if mpirun reported one."""
        self.vanished = False
        """Whether a rank exited, perhaps with status 0, without calling MPI_Finalize."""
        self.lost_host = ""
        """The host that mpirun cannot reach, or can no longer reach; empty if it named none."""
        self.lost_some_host = False
        """Whether mpirun said that it cannot reach a host, and did not name it."""
        self._blocks = blocks
        self._held: list[str] = []
        self._before = ""
        """What a rank had printed of a line in which the held block begins."""
        self._holds_blank = False
        """Whether an empty line is held, before the block if there is one."""
        self._since = 0.0
        self._after_noise = False
        self._daemon_failed = False

    def feed(self, line: str) -> list[str]:
        """Return the lines to show after this line."""
        self._look_for_host(line)
        if not self._held:
            return ([] if _EQUALS.fullmatch(line) else self.end()) + self._outside(line)
        end = _DASHES
        if _EQUALS.fullmatch(self._held[0]):
            if len(self._held) == 1 and not _MPICH.match(line):
                return self.end() + self._outside(line)
            end = _EQUALS
        self._held.append(line)
        if end.fullmatch(line):
            return self._complete()
        return self.end() if len(self._held) > self.HELD_LINES else []

    def _look_for_host(self, line: str) -> None:
        """Note the host of a daemon that failed. Open MPI names it on standard output, some lines after it says so."""
        if line.startswith("A daemon failed to report back"):
            self._daemon_failed = True
        elif self._daemon_failed and (named := _REMOTE_HOST.match(line)):
            self.lost_host, self._daemon_failed = named["host"], False
        elif named := _NO_PROXY.match(line):
            self.lost_host, self.lost_some_host = named["host"] or "", named["host"] is None

    def tick(self) -> list[str]:
        """Return the lines that were held for too long."""
        return self.end() if time.monotonic() - self._since > self.HOLD_SECONDS else []

    def end(self) -> list[str]:
        """Return the lines that are still held."""
        held, self._held = self._held, []
        if held and self._before:
            held[0], self._before = self._before + held[0], ""
        blank, self._holds_blank = self._holds_blank, False
        return ["", *held] if blank else held

    def _outside(self, line: str) -> list[str]:
        if self._blocks and (joined := _JOINED.fullmatch(line)):
            self._held, self._since, self._before = [joined["dashes"]], time.monotonic(), joined["line"]
            return []
        if (self._blocks and _DASHES.fullmatch(line)) or _EQUALS.fullmatch(line):
            self._held, self._since = [line], time.monotonic()
            return []
        if not (self._blocks or line.strip() or self._after_noise):
            self._holds_blank, self._since = True, time.monotonic()
            return []
        if said := _SIGNAL.match(line):
            self.signal = int(said["signal"])
        noise = _NOISE_LINE.match(line) is not None or (self._after_noise and not line.strip())
        self._after_noise = noise
        return [] if noise else self.of_rank(line)

    def of_rank(self, line: str) -> list[str]:
        """Return what to show of a rank's own line. On standard error, the MPI library may say there that it aborts."""
        said = _ABORTED.search(line) if self._blocks else None
        if said is None:
            return [line]
        if self.first_rank is None:
            self.first_rank = int(said["rank"])
        if not said["called"]:
            return [line]
        before = line[: said.start()]
        return [before] if before.strip() else []

    def _complete(self) -> list[str]:
        text = " ".join(line.strip() for line in self._held[1:-1]).strip()
        if _EQUALS.fullmatch(self._held[0]):
            self._after_noise, self._holds_blank = True, False
        elif lost := _LOST.match(text):
            self.lost_host = lost["host"]
        elif not _NOISE_BLOCK.match(text):
            return self.end()
        else:
            self.vanished = self.vanished or _VANISHED.search(text) is not None
            if self.first_rank is None and (named := _RANK.search(text)):
                self.first_rank = int(named["rank"] or named["last"])
        before, self._before, self._held = self._before, "", []
        return [before] if before else []
