"""Environment variables that the command line gives to workers and servers: `-x` and `--env`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hybridps.config import PREFIX
from hybridps.errors import ConfigError

_PAIR = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:[=:](?P<value>.*))?", re.DOTALL)
_OF_PS_LITE = "DMLC_"


@dataclass(frozen=True)
class Environment:
    """Variables and their values, for all workers and for all servers."""

    workers: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, str] = field(default_factory=dict)


def read_environment(
    here: Mapping[str, str],
    exports: Iterable[str] | None = None,
    env: Iterable[str] | None = None,
    env_worker: Iterable[str] | None = None,
    env_server: Iterable[str] | None = None,
) -> Environment:
    """Return the variables that the options give. `here`: the environment of the launcher, for names without a value.

    `exports` are words `NAME` or `NAME=VALUE` (`-x`). The others are comma-separated lists, as MXNet's `launch.py`
    takes them, of `NAME`, `NAME:VALUE` or `NAME=VALUE`. Variables for only workers or only servers override those for
    both. Raises ConfigError for any other form, a name without a value that is not set, two values of one name, and
    variables that have no effect.
    """
    for_all = [("-x", word) for word in exports or ()] + _parts("--env", env)
    both = _values(for_all, here)
    workers = _values(_parts("--env-worker", env_worker), here)
    servers = _values(_parts("--env-server", env_server), here)
    return Environment(both | workers, both | servers)


def _parts(option: str, lists: Iterable[str] | None) -> list[tuple[str, str]]:
    return [(option, part) for text in lists or () for part in text.split(",") if part]


def _values(given: Iterable[tuple[str, str]], here: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for option, text in given:
        name, value = _pair(option, text, here)
        if values.get(name, value) != value:
            raise ConfigError(f"{option} gives {name} two values: give only one")
        values[name] = value
    return values


def _pair(option: str, text: str, here: Mapping[str, str]) -> tuple[str, str]:
    found = _PAIR.fullmatch(text)
    if found is None or (option == "-x" and ":" in text.partition("=")[0]):
        and_so = "" if option == "-x" else ", and -x NAME=VALUE for a value with a comma"
        raise ConfigError(f"{option} {text!r} is not a variable: write NAME or NAME=VALUE{and_so}")
    name, value = found["name"], found["value"]
    _check_name(option, name, value)
    if value is None and name not in here:
        raise ConfigError(f"{option} {name} passes on a variable that is not set here: set it, or write {name}=VALUE")
    return name, here[name] if value is None else value


def _check_name(option: str, name: str, value: str | None) -> None:
    if name.startswith(PREFIX) and value is not None:
        raise ConfigError(f"{option} {name} is a setting: give it with --set {name.removeprefix(PREFIX).lower()}=VALUE")
    if name.startswith(_OF_PS_LITE):
        raise ConfigError(
            f"{option} {name} is for MXNet's own servers: hybridps run sets what they need (--backend mxnet), and no "
            "other part reads it; leave it out"
        )
