"""Binds a rank to cores and GPUs of its own, then becomes the rank's program.

A program of its own, run as a file so that it loads nothing else:

    bound.py WHAT PLACES ANNOUNCEMENT COMMAND...

`WHAT` has the words `cores` and `gpus`. `PLACES` has `INDEX/COUNT` for each rank: its index among the workers of its
host, and their number. `ANNOUNCEMENT` is printed first. Exits with status 2 if there are not enough GPUs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MISUSED = 2

Item = TypeVar("Item")


def part(items: Sequence[Item], index: int, count: int) -> Sequence[Item]:
    """Return the part of worker `index` of `count`: neighbours. If there are enough items, each is in exactly one part.

    >>> part("abcde", 0, 2), part("abcde", 1, 2), part("ab", 2, 3)
    ('ab', 'cde', 'a')
    """
    if len(items) < count:
        return items[index % len(items) :][:1]
    return items[len(items) * index // count : len(items) * (index + 1) // count]


def cores() -> list[int]:
    """Return the processors that this process may use, sorted by socket and core."""
    return sorted(
        os.sched_getaffinity(0), key=lambda cpu: (_number(cpu, "physical_package_id"), _number(cpu, "core_id"), cpu)
    )


def gpus() -> list[str]:
    """Return the GPUs that this process may use, by their names for CUDA."""
    if _VISIBLE in os.environ:
        return [name for name in os.environ[_VISIBLE].split(",") if name]
    return [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def main(what: str, places: str, announcement: str, *command: str) -> None:
    rank = next(int(os.environ[name]) for name in _RANKS if name in os.environ)
    index, count = map(int, places.split(",")[rank].split("/"))
    if "cores" in what.split(","):
        os.sched_setaffinity(0, part(cores(), index, count))
    if "gpus" in what.split(","):
        found = gpus()
        if len(found) < count:
            print(
                f"hybridps: error: --bind gpus: {os.uname().nodename} has {len(found)} GPUs for {count} workers: start "
                "at most one worker for each GPU, or leave gpus out",
                file=sys.stderr,
            )
            sys.exit(_MISUSED)
        os.environ[_VISIBLE] = ",".join(part(found, index, count))
    os.write(1, f"{announcement}\n".encode())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the program would inherit that
        signal.signal(number, signal.SIG_DFL)
    if "HYBRIDPS_NOTICE_SECONDS" in os.environ:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.execvp(command[0], command)


def _number(cpu: int, name: str) -> int:
    try:
        return int(Path(_TOPOLOGY.format(cpu, name)).read_text())
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
