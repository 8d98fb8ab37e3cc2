"""Options for the ranks: how their lines are shown, and which cores and GPUs each has for itself. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridps.cli.run.plan.hosts import Host
from hybridps.errors import ConfigError, did_you_mean

GROUP, WORKER, NONE = PREFIXES = ("group", "worker", "none")
"""What the prefix of each line of a worker names."""

CORES, GPUS = BINDINGS = ("cores", "gpus")
"""What each worker may have for itself."""

_OURS = {
    **dict.fromkeys(("-n", "-np", "--np", "-c"), "give the number of workers with -n"),
    **dict.fromkeys(("-H", "-host", "--host", "-hosts", "--hostfile", "-f", "-machinefile"), "name the hosts with -H"),
    **dict.fromkeys(("--output", "--tag-output", "-prepend-rank", "-l"), "use --prefix worker, or --log-dir"),
}
"""The options of mpirun that hybridps gives itself, and what the user can do instead."""

_MAPS = ("map-by", "rank-by", "bind-to", "rankfile", "cpu-set", "cpu-list")


@dataclass(frozen=True)
class RankOptions:
    """How ranks are started and their output is shown."""

    prefix: str = GROUP
    log_folder: Path | None = None
    """The folder in which each worker and server has a file with its output."""
    mpi_arguments: tuple[str, ...] = ()
    """The user's own options for mpirun."""
    bound: tuple[str, ...] = ()
    """What each worker has for itself: words of `BINDINGS`."""

    @property
    def are_told_apart(self) -> bool:
        """Whether it matters which rank has written a line."""
        return self.prefix == WORKER or self.log_folder is not None


def read_rank_options(
    prefix: str = GROUP, log_folder: Path | None = None, mpi_arguments: str | None = None, bind: str | None = None
) -> RankOptions:
    """Return what the options ask for. Raises ConfigError for unknown words and for contradictory options."""
    _check("--prefix", prefix, PREFIXES)
    bound = tuple(word for word in (bind or "").split(",") if word)
    for word in bound:
        _check("--bind", word, BINDINGS)
    try:
        arguments = tuple(shlex.split(mpi_arguments or ""))
    except ValueError as error:
        raise ConfigError(f"--mpi-args {mpi_arguments!r} cannot be read: {error}") from None
    for word in arguments:
        if word in _OURS:
            raise ConfigError(f"--mpi-args {mpi_arguments!r}: hybridps run gives mpirun {word} itself; {_OURS[word]}")
        if bound and word.lstrip("-") in _MAPS:
            raise ConfigError(f"--bind {bind} and --mpi-args {mpi_arguments!r} both place the ranks: give only one")
    return RankOptions(prefix, log_folder and log_folder.absolute(), arguments, bound)


def places_on_hosts(groups: Sequence[tuple[int, Sequence[Host]]]) -> list[list[tuple[int, int]]]:
    """Return, for each rank of each group, its index among the workers of its host, and their number.

    A group is its size and its hosts, whose slots its ranks take in order; without hosts all are on one.

    >>> places_on_hosts([(2, [Host("a", 2)]), (2, [Host("a", 1), Host("b", 1)])])
    [[(0, 3), (1, 3)], [(2, 3), (0, 1)]]
    """
    names = [[host.name for host in hosts for _ in range(host.slots)][:size] or [""] * size for size, hosts in groups]
    all_of = Counter(name for group in names for name in group)
    taken: Counter[str] = Counter()
    places: list[list[tuple[int, int]]] = []
    for group in names:
        places.append([])
        for name in group:
            places[-1].append((taken[name], all_of[name]))
            taken[name] += 1
    return places


def _check(option: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise ConfigError(f"{option} {word} is not one of {', '.join(words)}{did_you_mean(word, words)}")
