"""What a comparison will run: the command line for each contender with each seed. Pure."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hybridps.cli.compare.contenders import Contender
from hybridps.cli.run.plan.hosts import Host
from hybridps.cli.run.plan.user_command import wrap
from hybridps.links import LAUNCHER, Links

SEED = "COMPARE_SEED"
"""The variable that a script reads its seed from. `{seed}` in the command is also replaced by the seed."""

KVSTORE = "COMPARE_KVSTORE"
"""The variable that a script reads the type of its KVStore from. `{kvstore}` in the command is also replaced by it."""


WITNESS = "hybridps.cli.compare.witness"
"""The module that runs the scripts of MXNet's own stores."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared, and how."""

    contenders: tuple[str, ...]
    seeds: int
    workers: int
    groups: int
    command: tuple[str, ...]
    servers: int | None = None
    link: str | None = None
    """The rate of the link of each group. None: all groups share this host, without a limit."""
    budget_seconds: float | None = None
    """The number of seconds after which a run is ended; its results up to then count."""
    to_accuracy: float | None = None
    settings: tuple[str, ...] = ()
    """`NAME=VALUE`, for all contenders but MXNet's own."""
    exports: tuple[str, ...] = ()
    """Variables for all workers, `NAME` or `NAME=VALUE`."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of workers in each group, as equal as possible."""
        each, more = divmod(self.workers, self.groups)
        return tuple(each + (group < more) for group in range(self.groups))


class Trial(NamedTuple):
    """One run of a contender. Its events, output and result are in its folder."""

    contender: Contender
    seed: int
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.contender.name}, seed {self.seed}"


class NativeJob(msgspec.Struct, frozen=True):
    """What `native.py` starts: a scheduler and servers of MXNet, and workers."""

    store: str
    host: str
    """The address at which the scheduler and the servers listen."""
    servers: int
    addresses: list[str]
    """The addresses of the workers' nodes."""
    inside: list[list[str]]
    """For each worker, the words before its command that run it on its node."""
    groups: list[int]
    """The group that each worker would be in."""
    folder: str
    command: list[str]
    environment: dict[str, str]


def trials_of(comparison: Comparison, contenders: Sequence[Contender], folder: Path) -> list[Trial]:
    """Return all trials, seed by seed, so that a comparison that ends early has results of every contender."""
    return [
        Trial(contender, seed, folder / contender.folder / f"seed-{seed}")
        for seed in range(comparison.seeds)
        for contender in contenders
    ]


def fingerprint(comparison: Comparison, trial: Trial, context: Mapping[str, str]) -> str:
    """Return a short text that changes if the trial would run differently. `context`: what else its run depends on."""
    same = msgspec.structs.replace(comparison, contenders=(trial.contender.name,), seeds=trial.seed, to_accuracy=None)
    return hashlib.sha256(msgspec.json.encode((same, sorted(context.items())))).hexdigest()[:16]


def user_command(comparison: Comparison, trial: Trial) -> list[str]:
    """Return the script's command, with the seed and the KVStore type in place of `{seed}` and `{kvstore}`."""
    places = {"{seed}": str(trial.seed), "{kvstore}": trial.contender.kvstore}
    words = []
    for word in comparison.command:
        for place, value in places.items():
            word = word.replace(place, value)
        words.append(word)
    return words


def trial_command(comparison: Comparison, trial: Trial, links: Links | None) -> list[str]:
    """Return the command that runs a trial. With links, it starts beside the nodes."""
    inside = links.launcher if links else []
    words = _native_words if trial.contender.is_native else _hybridps_words
    return [*inside, sys.executable, *words(comparison, trial, links)]


def _variables(trial: Trial) -> dict[str, str]:
    return {SEED: str(trial.seed), KVSTORE: trial.contender.kvstore}


def _hybridps_words(comparison: Comparison, trial: Trial, links: Links | None) -> list[str]:
    contender = trial.contender
    words = ["-m", "hybridps", "run", "-n", str(comparison.workers), "--run", str(trial.folder)]
    words += [] if contender.makes_groups else ["--groups", str(comparison.groups)]
    words += ["--algorithm", contender.algorithm]
    words += ["--trigger", contender.trigger] if contender.trigger else []
    words += ["--set", f"wire={contender.wire}"] if contender.wire else []
    words += [] if comparison.servers is None else ["--servers", str(comparison.servers)]
    for pair in comparison.settings:
        words += ["--set", pair]
    for export in (*comparison.exports, *(f"{name}={value}" for name, value in _variables(trial).items())):
        words += ["-x", export]
    if links:
        hosts = (Host(address, size) for address, size in zip(links.addresses, comparison.sizes, strict=True))
        words += ["--insecure", "--hosts", ",".join(map(str, hosts))]  # the namespaces' network has no other users
    return [*words, "--", *user_command(comparison, trial)]


def _native_words(comparison: Comparison, trial: Trial, links: Links | None) -> list[str]:
    groups = [group for group, size in enumerate(comparison.sizes) for _ in range(size)]
    addresses = [links.addresses[group] if links else "127.0.0.1" for group in groups]
    exports = dict(export.split("=", 1) for export in comparison.exports if "=" in export)
    job = NativeJob(
        store=trial.contender.name,
        host=LAUNCHER if links else "127.0.0.1",
        servers=comparison.servers or 1,
        addresses=addresses,
        inside=[links.inside(address) if links else [] for address in addresses],
        groups=groups,
        folder=str(trial.folder),
        command=list(wrap(user_command(comparison, trial), runner=WITNESS)),
        environment=exports | _variables(trial),
    )
    return ["-m", "hybridps.cli.compare.native", msgspec.json.encode(job).decode()]
