"""What `hybridps compare` checks before it runs anything."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hybridps import __version__
from hybridps.cli.app import read_settings
from hybridps.cli.compare.contenders import Contender, check_contender
from hybridps.cli.compare.plan import Comparison
from hybridps.cli.run.plan import make_launch, user_command
from hybridps.cli.run.plan.environment import read_environment
from hybridps.config import PREFIX, SECRETS, Settings
from hybridps.errors import ConfigError, HybridPSError
from hybridps.links import bits_per_second, missing

_OURS = {
    "algorithm": "--algorithms",
    "trigger": "--algorithms NAME+TRIGGER",
    "run_folder": "--out",
    "groups": "--groups",
    "group_sizes": "-n and --groups",
    "workers_per_group": "-n and --groups",
}
"""The settings that the comparison itself makes, and the options for them."""


def check(comparison: Comparison, contenders: Sequence[Contender]) -> None:
    """Raise ConfigError for options that are invalid or contradict each other."""
    user_command.check(comparison.command)
    try:
        bits_per_second(comparison.link or "1gbit")
    except ValueError as error:
        raise ConfigError(f"--link {comparison.link}: {error}") from None
    for option, count, what in (("--groups", comparison.groups, "group"), ("-n", comparison.workers, "worker")):
        if count < 1:
            raise ConfigError(f"{option} {count} cannot be used: a job has at least one {what}")
    if comparison.groups > comparison.workers:
        raise ConfigError(
            f"-n {comparison.workers} --groups {comparison.groups}: every group needs a worker, so give at most "
            f"{comparison.workers} groups"
        )
    if comparison.link and comparison.groups < 2:
        raise ConfigError(f"--link {comparison.link} has no effect with one group: give --groups 2 or more")
    if comparison.to_accuracy is not None and not 0 < comparison.to_accuracy <= 1:
        raise ConfigError(f"--to-accuracy {comparison.to_accuracy:g} must be between 0 and 1, e.g. 0.9")
    read_environment(os.environ, comparison.exports)
    _check_owned(comparison)
    for contender in contenders:
        check_contender(contender)
        if not contender.is_native:
            _check_launch(comparison, contender)


def check_host(comparison: Comparison) -> None:
    """Raise HybridPSError if this host lacks something that the comparison needs."""
    if find_spec("matplotlib") is None:
        raise HybridPSError("the page needs matplotlib: pip install 'hybridps[demo]'")
    if comparison.link and (reason := missing()):
        raise ConfigError(f"--link {comparison.link}: {reason}")


def context_of(comparison: Comparison) -> dict[str, str]:
    """Return what a run depends on besides the comparison: folder, version, variables, and scripts in the command."""
    context = {"folder": os.getcwd(), "version": __version__}
    names = [name for name in os.environ if name.startswith(PREFIX) and name not in SECRETS]
    names += [export for export in comparison.exports if "=" not in export]
    context |= {f"${name}": os.environ.get(name, "") for name in names}
    scripts = [Path(word) for word in comparison.command if word.endswith(".py")]
    return context | {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in scripts if path.is_file()}


def _check_owned(comparison: Comparison) -> None:
    for pair in comparison.settings:
        name = pair.partition("=")[0].strip().removeprefix(PREFIX).lower()
        if name in _OURS:
            raise ConfigError(f"--set {name} cannot be used, as the comparison sets it: use {_OURS[name]}")
    for name, option in _OURS.items():
        if os.environ.get(PREFIX + name.upper()):
            variable = PREFIX + name.upper()
            raise ConfigError(f"{variable} cannot be used, as the comparison sets it: unset it, and use {option}")


def _check_launch(comparison: Comparison, contender: Contender) -> None:
    """Raise HybridPSError if `hybridps run` or its ranks would refuse the launch of a contender."""
    from hybridps.algorithms import choose_row, definition, resolve

    groups = {} if contender.makes_groups else {"groups": comparison.groups}
    settings = read_settings(contender.settings | groups, comparison.settings)
    launch = make_launch(comparison.command, settings, workers=comparison.workers, servers=comparison.servers)
    algorithm, has_servers = resolve(settings).algorithm or "", bool(launch.servers or settings.servers)
    is_one_group = len(launch.groups) == 1 < comparison.workers
    if is_one_group and definition(algorithm).is_asynchronous:
        raise ConfigError(
            f"{contender.name!r} needs several groups, and there is one, which would train as with sync: give "
            f"--groups {comparison.workers}"
        )
    if is_one_group and not has_servers and choose_row(algorithm, settings, 1, False, None, None).sends == "weights":
        raise ConfigError(
            f"{contender.name!r} averages weights with other groups, and there is one group: give --groups 2 or more"
        )
    if contender.wire:
        _check_wire(contender, settings, algorithm, len(launch.groups))
    if contender.trigger and settings.tau is not None:
        raise ConfigError(
            f"--set tau={settings.tau} has no meaning with the trigger of {contender.name!r}: name a trigger for each "
            f"contender, such as elastic+every:{settings.tau}"
        )


def _check_wire(contender: Contender, settings: Settings, algorithm: str, groups: int) -> None:
    """Raise ConfigError if the contender would train as without its wire. `algorithm`: its short name."""
    from hybridps.algorithms import choose_row, definition

    name, wire = contender.name, contender.wire
    if settings.wire != wire:
        raise ConfigError(f"--set wire={settings.wire} contradicts the contender {name!r}: leave one out")
    if groups == 1:
        raise ConfigError(f"{name!r} rounds what groups send, and there is one group: give --groups 2 or more")
    # With an asynchronous algorithm, servers update and send weights; it has no row without their rule.
    is_rounded = not definition(algorithm).is_asynchronous and (
        choose_row(algorithm, settings, groups, True, None, None).codec == wire
    )
    if not is_rounded:
        why = f"{algorithm} sends weights between groups, which are never rounded"
        if settings.backend != "hybridps":
            why = f"the backend {settings.backend} rounds nothing"
        raise ConfigError(f"{name!r}: {why}: leave +{wire} out")
