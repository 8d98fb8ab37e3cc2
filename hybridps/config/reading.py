"""Read settings from environment variables, and write them as environment variables."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from hybridps.addresses import problem_of_metrics_host, problem_of_ps_lite, problem_of_server
from hybridps.config.settings import Settings
from hybridps.errors import ConfigError, did_you_mean

PREFIX = "HYBRIDPS_"
SECRETS = ("HYBRIDPS_CREDENTIALS", "HYBRIDPS_TICKET")
"""Variables whose values are never shown."""

_ORDER = (
    ("heartbeat_seconds", "lost_seconds"),
    ("lost_seconds", "reconnect_seconds"),
    ("lost_seconds", "deadline_seconds"),
    ("connect_seconds", "deadline_seconds"),
    ("reconnect_seconds", "deadline_seconds"),
)
"""Pairs of waits. The first must not be longer than the second."""


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings given by environment variables (default: those of this process).

    Raises ConfigError for an unknown name or an unusable value.
    """
    given = {name.removeprefix(PREFIX).lower(): text for name, text in environ.items() if name.startswith(PREFIX)}
    return make_settings({field: text for field, text in given.items() if text != ""})


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Return settings from field names and values. Text is converted as in environment variables.

    Raises ConfigError for an unknown name, an unusable value, or an impossible address.
    """
    converted = {}
    hints = get_type_hints(Settings, include_extras=True)
    for field, value in values.items():
        if field not in hints:
            raise ConfigError(_unknown(field))
        if isinstance(value, str) and "tuple" in str(hints[field]):
            value = [part.strip() for part in value.split(",") if part.strip()]
        try:
            converted[field] = msgspec.convert(value, hints[field], strict=False)
        except msgspec.ValidationError as error:
            reason = str(error).split(" - at ")[0].replace("Expected", "expected", 1)
            raise _unusable(field, value, _expected_of(field, hints[field]) or reason) from None
        if isinstance(converted[field], float) and not math.isfinite(converted[field]):
            raise _unusable(field, value, _expected_of(field, hints[field]))
    settings = Settings(**converted)
    _check_addresses(settings)
    _check_order(settings, converted.keys())
    return settings


def to_environment(settings: Settings) -> dict[str, str]:
    """Return the variables from which `load_settings` makes these settings; defaults are left out."""
    default = Settings()
    return {
        PREFIX + field.upper(): text_of(value)
        for field, value in msgspec.structs.asdict(settings).items()
        if value != getattr(default, field)
    }


def tuning_file() -> Path:
    """Return the file in which `hybridps tune` keeps the tuning table of this host.

    Raises ConfigError if this user has no home folder, nor a cache folder elsewhere.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise ConfigError("this user has no home folder for the tuning table: set XDG_CACHE_HOME to a folder") from None
    return Path(cache, "hybridps", f"tuning-{socket.gethostname()}.json")


def find_tuning_file() -> Path | None:
    """Return that file; None if it does not exist, or this user cannot reach the folder."""
    with suppress(ConfigError, OSError):
        path = tuning_file()
        return path if path.exists() else None
    return None


def started_by_mpi(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether an MPI launcher started this process (Open MPI, MPICH, MVAPICH, SLURM's PMI or PMIx)."""
    marks = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
    return any(mark in environ for mark in marks)


def world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of ranks of this process's MPI world; 1 if it was not started by MPI."""
    names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    if not started_by_mpi(environ):
        return 1
    return max((int(environ[name]) for name in names if environ.get(name, "").isdecimal()), default=1)


def world_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return the rank of this process in its MPI world; 0 if it was not started by MPI."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
    return next((int(environ[name]) for name in names if environ.get(name, "").isdecimal()), 0)


def _unknown(field: str) -> str:
    given, known = (PREFIX + field.upper()), [PREFIX + each.upper() for each in Settings.__struct_fields__]
    return f"{given} is not a setting of hybridps{did_you_mean(given, known)}"


def _unusable(field: str, value: Any, reason: str) -> ConfigError:
    on_one_line = re.sub(r"\s+", " ", text_of(value))
    return ConfigError(f"{PREFIX}{field.upper()}={on_one_line!r} cannot be used: {reason}")


def _check_addresses(settings: Settings) -> None:
    """Raise ConfigError for an address that no client can connect to, or no server can listen at."""
    problem_of_theirs = problem_of_ps_lite if settings.backend == "mxnet" else problem_of_server
    looked_at = [("servers", address, problem_of_theirs(address)) for address in settings.servers]
    looked_at += [("parents", address, problem_of_server(address)) for address in settings.parents]
    looked_at += [("peers", address, problem_of_server(address)) for address in settings.peers]
    looked_at += [("metrics_bind", settings.metrics_bind, problem_of_metrics_host(settings.metrics_bind))]
    for field, value, problem in looked_at:
        if problem:
            raise _unusable(field, value, problem)


def _check_order(settings: Settings, given: Set[str]) -> None:
    """Raise ConfigError if a given wait is longer than the second of its pair. Defaults may be longer."""
    for field, later in _ORDER:
        first, second = getattr(settings, field), getattr(settings, later)
        if field in given and first and second and first > second:
            raise _unusable(field, f"{first:g}", f"it must not be longer than {PREFIX}{later.upper()}={second:g}")


def _expected_of(field: str, hint: Any) -> str:
    """Return what a setting accepts, with its unit.

    >>> from msgspec import Meta
    >>> _expected_of("lost_seconds", Annotated[float, Meta(gt=0)])
    'expected a number of seconds > 0'
    """
    return _expected(hint).replace("a number", "a number of seconds" if field.endswith("_seconds") else "a number", 1)


def _expected(hint: Any) -> str:
    """Return what a type allows, in words; empty if it has neither choices nor bounds.

    >>> from hybridps.config.settings import Seconds
    >>> _expected(Seconds | None)
    'expected a number > 0 and <= 1000000'
    >>> _expected(Literal["warn", "refuse"])
    'expected one of warn, refuse'
    """
    if get_origin(hint) is Literal:
        return f"expected one of {', '.join(get_args(hint))}"
    if get_origin(hint) is not Annotated:
        return next(filter(None, map(_expected, get_args(hint))), "")
    kind, meta = get_args(hint)
    signs = (">", meta.gt), (">=", meta.ge), ("<", meta.lt), ("<=", meta.le)
    bounds = " and ".join(f"{sign} {bound}" for sign, bound in signs if bound is not None)
    multiple = f", a multiple of {meta.multiple_of}" if meta.multiple_of else ""
    name = {int: "an integer", float: "a number"}.get(kind)
    return f"expected {name} {bounds}{multiple}" if name else ""


def text_of(value: Any) -> str:
    """Return a value as the text of an environment variable."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
