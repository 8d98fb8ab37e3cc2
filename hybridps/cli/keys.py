"""`hybridps keys`: creates the keys of a server and its tenants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hybridps.errors import ConfigError
from hybridps.ps.keys import Quotas, make_tenant

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def make_keys(folder: Path, tenants: Sequence[str], memory: str | None, rate: str | None) -> None:
    """Create the keys, and print how to use them. Raises ConfigError."""
    quotas = Quotas(*(None if text is None else parse_bytes(text) for text in (memory, rate)))
    for name in tenants:
        theirs = make_tenant(folder, name, quotas)
        print(
            f"hybridps: {name}: give {theirs} to the tenant, and remove it here; jobs use it with HYBRIDPS_KEYS=FOLDER"
        )
    print(f"hybridps: servers use these keys with HYBRIDPS_SERVER_KEYS={folder}")


def parse_bytes(text: str) -> int:
    """Return the number of bytes from a number with a unit, a power of 1024. Raises ConfigError.

    >>> parse_bytes("1.5G")
    1610612736
    """
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)([kmgt]?)", text.strip().lower())
    nbytes = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if nbytes < 1:
        raise ConfigError(f"{text!r} is not a number of bytes: write it like 500M or 1.5G")
    return nbytes
