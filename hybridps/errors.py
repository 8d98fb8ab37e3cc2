"""The errors that hybridps raises for a caller's mistakes, and for failures outside of the process."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

FAILED = 1
"""The exit status of a process in which something went wrong."""

MISUSED = 2
"""The exit status of a process that was asked for something impossible. No part of the job can continue."""

LATE = 75
"""The exit status of a group that comes after the others have trained, and can only begin together with them."""


class HybridPSError(Exception):
    """Base class. The message has the value, what was expected, and what to do.

    `everywhere` is true if all ranks of the job raise the same error at the same point, so that one rank can report it
    for all.
    """

    everywhere: bool = False
    status: int = FAILED
    """The exit status if nobody handles the error."""

    def on_all_ranks(self) -> HybridPSError:
        """Return this error, marked as one that all ranks raise."""
        self.everywhere = True
        return self


class ConfigError(HybridPSError):
    """A setting has a value that cannot be used, or an unknown name."""

    status = MISUSED


class PlanError(HybridPSError):
    """The ranks at hand cannot be arranged as the settings ask."""

    status = MISUSED


class LayoutError(HybridPSError):
    """A layout, array or key is not what the operation needs, or differs from the one registered."""

    status = MISUSED


class OracleError(HybridPSError):
    """A network, machine or question of the oracle cannot be used."""

    status = MISUSED


class GroupError(HybridPSError):
    """A collective operation could not be carried out."""


class ServerError(HybridPSError):
    """A parameter server refused a request, or is gone."""


class LateError(ServerError):
    """This group came after the others had trained, and nobody can give it what it needs to train with them."""

    status = LATE


class ProtocolError(ServerError):
    """A message does not have the form that the protocol prescribes."""


class DeadlineError(HybridPSError):
    """Something that was awaited did not come in time."""


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the question whether the nearest known one was meant.

    >>> did_you_mean("elastik", ["sync", "elastic"])
    "; did you mean 'elastic'?"
    """
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}?" if near else ""
