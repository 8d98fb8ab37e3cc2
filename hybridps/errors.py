"""Everything that hybridps raises for what a caller can get wrong, or that went wrong outside of the process."""

from __future__ import annotations

FAILED = 1
"""Exit status of a process that something went wrong for."""

MISUSED = 2
"""Exit status of a process that was asked for what cannot be: no part of the job can go on."""

LATE = 75
"""Exit status of a group that comes when the others have trained, and can only begin together with them."""


class HybridPSError(Exception):
    """Base class. The message has the value, what was expected, and what to do.

    `everywhere` is true when all ranks of the job raise the same error at the same point, so that
    one rank can report it for all.
    """

    everywhere: bool = False
    status: int = FAILED
    """Exit status where nobody handles the error."""

    def on_all_ranks(self) -> HybridPSError:
        """This error, marked as one that all ranks raise."""
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
    """This group comes when others have trained, and nobody can give it what it needs to train with them."""

    status = LATE


class ProtocolError(ServerError):
    """A message is not of the form that the protocol prescribes."""


class DeadlineError(HybridPSError):
    """Something awaited did not come in time."""
