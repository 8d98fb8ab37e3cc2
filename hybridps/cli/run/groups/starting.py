"""How the launcher knows that mpirun has started the ranks of a group: each prints a line before its program begins."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from hybridps.cli.run.plan import GroupLaunch
from hybridps.cli.run.plan.user_command import is_python

RUNS = "hybridps: this rank runs"

# Python ignores these signals, and the program would inherit that.
_BY_PYTHON = (
    f"import os, signal, sys; os.write(1, b'{RUNS}\\n'); "
    "[signal.signal(each, signal.SIG_DFL) for each in (signal.SIGPIPE, signal.SIGXFSZ)]; "
    "'HYBRIDPS_NOTICE_SECONDS' in os.environ and signal.signal(signal.SIGUSR1, signal.SIG_IGN); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_BY_SHELL = f'[ -z "$HYBRIDPS_NOTICE_SECONDS" ] || trap "" USR1; echo "{RUNS}"; exec "$0" "$@"'
_SHELLS = ("sh", "bash", "dash")


def announced(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command, changed so that each rank first prints `RUNS`; empty for a program that cannot be changed so.

    The interpreter that the program needs anyway prints the line, and then becomes the program. Others may be missing
    on another host, or change the environment: `sh` loses the functions that `bash` has exported.

    >>> announced(["bash", "train.sh"])[:2], announced(["./train"])
    (('bash', '-c'), ())
    """
    if is_python(command[0]):
        return (command[0], "-I", "-S", "-c", _BY_PYTHON, *command)
    if os.path.basename(command[0]) in _SHELLS:
        return (command[0], "-c", _BY_SHELL, *command)
    return ()


class Starting:
    """Counts the ranks that run. `seconds`: how long mpirun may take to start all ranks of a group."""

    def __init__(self, groups: Sequence[GroupLaunch], seconds: float) -> None:
        self._groups = groups
        self._seconds = seconds
        self._running = [0 for _ in groups]
        self._ends = [time.monotonic() + seconds for _ in groups]

    def begin(self, group: int) -> None:
        """Note that a group is restarted."""
        self._running[group], self._ends[group] = 0, time.monotonic() + self._seconds

    def hear(self, group: int, line: str) -> str | None:
        """Note the line of a rank that runs. Return the text of another rank before it; None for any other line."""
        if not line.endswith(RUNS):
            return None
        self._running[group] += 1
        return line.removesuffix(RUNS)

    def has_started(self, group: int) -> bool:
        """Return whether all ranks of a group run."""
        return self._running[group] >= self._groups[group].size

    def late(self) -> list[int]:
        """Return the groups that should have started by now, and have not."""
        now = time.monotonic()
        late = [group for group in self._groups if now >= self._ends[group.index]]
        return [group.index for group in late if self._running[group.index] < group.size]

    def describe(self, group: int) -> str:
        """Return what is wrong with a late group, and what to try."""
        launch = self._groups[group]
        where = ", ".join(host.name for host in launch.hosts)
        check = f"see whether `ssh {launch.hosts[-1].name} true` works without a password, " if where else ""
        return (
            f"group {launch.number} has not started: mpirun runs {self._running[group]} of its {launch.size} ranks"
            f"{f' on {where}' if where else ''} after {self._seconds:g} s. Start the job again, as mpirun may hang on "
            f"a busy host; if that does not help, {check}or allow more time with --set start_seconds="
            f"{2 * self._seconds:g}"
        )
