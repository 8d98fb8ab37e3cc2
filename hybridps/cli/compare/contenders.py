"""The contenders of a comparison, `ALGORITHM[+TRIGGER][+WIRE]`. Pure, except that it looks up names in other rooms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import get_args, get_type_hints

from hybridps.config import Settings, make_settings
from hybridps.errors import ConfigError

NATIVE = "mxnet:"
"""The prefix of the names of MXNet's own stores."""

STORES = ("dist_sync", "dist_device_sync", "dist_async")
"""MXNet's own stores that can take part."""

WIRES = tuple(wire for wire in get_args(get_type_hints(Settings)["wire"]) if wire != "exact")
"""The dtypes that values can be rounded to when they are sent (`HYBRIDPS_WIRE`)."""

OURS = "dist_hybridps"
"""The KVStore type of all other contenders. `hybridps run --algorithm` sets the algorithm behind it."""


@dataclass(frozen=True)
class Contender:
    """An algorithm with its trigger and what it sends values in, or one of MXNet's own stores."""

    name: str
    algorithm: str
    trigger: str | None = None
    wire: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The settings that its name makes."""
        made = {"algorithm": self.algorithm, "trigger": self.trigger, "wire": self.wire}
        return {name: value for name, value in made.items() if value is not None}

    @property
    def is_native(self) -> bool:
        """Whether it runs on MXNet's own servers, without hybridps."""
        return self.algorithm.startswith(NATIVE)

    @property
    def makes_groups(self) -> bool:
        """Whether its name makes each worker a group of its own."""
        return self.algorithm.lower().startswith("dist-")

    @property
    def kvstore(self) -> str:
        """The type of KVStore that the script is to create."""
        return self.algorithm.removeprefix(NATIVE) if self.is_native else OURS

    @property
    def folder(self) -> str:
        """Its name, in characters that are safe in file names.

        >>> Contender("gossip+change:0.05,silence=100", "gossip", "change:0.05,silence=100").folder
        'gossip+change-0.05-silence-100'
        """
        return re.sub(r"[^A-Za-z0-9_.+-]", "-", self.name)


def parse_contenders(text: str) -> tuple[Contender, ...]:
    """Return the contenders of a list with commas; `NAME=VALUE` belongs to the trigger before it. Raises ConfigError.

    >>> [contender.name for contender in parse_contenders("sync+float16,elastic+every:4,silence=9,mxnet:dist_sync")]
    ['sync+float16', 'elastic+every:4,silence=9', 'mxnet:dist_sync']
    """
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and names and "+" in names[-1]:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not names:
        raise ConfigError("--algorithms is empty: write, for example, --algorithms sync,elastic")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--algorithms names {name!r} twice: name it once")
    return tuple(map(_contender, names))


def check_contender(contender: Contender) -> None:
    """Raise ConfigError if there is no such algorithm, trigger or store."""
    if contender.is_native:
        if contender.kvstore not in STORES or contender.trigger or contender.wire:
            stores = ", ".join(NATIVE + store for store in STORES)
            raise ConfigError(
                f"{contender.name!r} is not a store of MXNet's own: use one of {stores}, with nothing added"
            )
        if find_spec("mxnet") is None:
            raise ConfigError(f"{contender.name!r} needs MXNet: pip install 'hybridps[mxnet]', or leave it out")
        return
    expected_settings(contender)


def expected_settings(contender: Contender) -> dict[str, str | None]:
    """Return a contender's algorithm, by its short name, its trigger, and its wire, if it names one.

    Raises ConfigError for unknown ones.
    """
    from hybridps.algorithms import resolve  # this loads the compiler, which takes longer than everything else here

    settings = resolve(make_settings(contender.settings))
    return contender.settings | {"algorithm": settings.algorithm, "trigger": settings.trigger}


def _contender(name: str) -> Contender:
    wire = next((wire for wire in WIRES if name.endswith(f"+{wire}")), None)
    algorithm, plus, trigger = name.removesuffix(f"+{wire}").partition("+")
    if not algorithm or (plus and not trigger):
        raise ConfigError(
            f"{name!r} is not a valid contender: write ALGORITHM, ALGORITHM+TRIGGER, e.g. elastic+every:4, or "
            "ALGORITHM+WIRE, e.g. sync+float16"
        )
    return Contender(name, algorithm, trigger or None, wire)
