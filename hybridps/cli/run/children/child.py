"""A child process of a launch, and the pipes that its output comes through."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from hybridps.cli.run.children.noise import NoiseFilter
from hybridps.cli.run.children.rank_ends import RankEnds
from hybridps.cli.run.children.rank_lines import RankSplitter


@dataclass
class Stream:
    """Standard output or standard error of a child."""

    child: Child
    kind: str
    pipe: IO[bytes]
    noise: NoiseFilter
    splitter: RankSplitter


@dataclass
class Child:
    """A process started by `Processes.start`."""

    name: str
    process: subprocess.Popen[bytes]
    on_line: Callable[[str], bool]
    """Called with each line of standard output; if it returns True, the line is hidden."""
    names: Mapping[int, str]
    """The names under which the lines of its ranks are shown."""
    mark: str
    """A variable in its environment, which its descendants inherit."""
    ends: RankEnds | None = None
    """Collects how its ranks ended, if they print it."""
    hosts: str = ""
    """The hosts of its ranks, in words, if they are named."""
    streams: list[Stream] = field(default_factory=list)
    status: int | None = None
    """The exit status as a shell counts it, 128 + n for signal n; None while the process runs."""
    first_rank: int | None = None
    """The rank that failed first, if mpirun or the ranks told; set together with the status."""
    vanished: bool = False
    """Whether that rank exited without calling MPI_Finalize, perhaps with status 0."""
    lost_host: str = ""
    """The host that mpirun could no longer reach; empty if there is none."""
    end: int | None = None
    """A file descriptor that becomes readable when the process ends, if the kernel provides one."""

    def name_of(self, rank: int | None) -> str:
        """Return the name under which a line of this rank is shown. None: a line of no single rank."""
        return self.name if rank is None else self.names.get(rank, self.name)

    def tell(self, line: str) -> None:
        """Write a line to the standard input of a child that listens. Does nothing if it has ended or reads nothing."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self.process.stdin.fileno(), f"{line}\n".encode())


def running(children: Sequence[Child]) -> list[Child]:
    """Return the children that have not ended."""
    return [child for child in children if child.status is None]


def open_streams(child: Child) -> list[Stream]:
    return [stream for stream in child.streams if not stream.pipe.closed]
