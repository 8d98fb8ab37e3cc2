"""Settings: `Settings`, and the one reader of environment variables.

The variable `HYBRIDPS_<FIELD>` sets each field of `Settings`. A name that begins with `HYBRIDPS_` but is no setting is
refused; the message has the nearest valid name.
"""

from hybridps.config.reading import (
    PREFIX,
    SECRETS,
    find_tuning_file,
    load_settings,
    make_settings,
    started_by_mpi,
    text_of,
    to_environment,
    tuning_file,
    world_rank,
    world_size,
)
from hybridps.config.settings import (
    LONGEST_SECONDS,
    Name,
    Seconds,
    Settings,
    without_secrets,
)

__all__ = [
    "LONGEST_SECONDS",
    "PREFIX",
    "SECRETS",
    "Name",
    "Seconds",
    "Settings",
    "find_tuning_file",
    "load_settings",
    "make_settings",
    "started_by_mpi",
    "text_of",
    "to_environment",
    "tuning_file",
    "without_secrets",
    "world_rank",
    "world_size",
]
