"""Everything that hybridps raises for what a caller can get wrong, or that went wrong outside of the process."""

from __future__ import annotations


class HybridPSError(Exception):
    """Base class. The message has the value, what was expected, and what to do.

    `everywhere` is true when all ranks of the job raise the same error at the same point, so that
    one rank can report it for all.
    """

    everywhere: bool = False


class ConfigError(HybridPSError):
    """A setting has a value that cannot be used, or an unknown name."""


class PlanError(HybridPSError):
    """The ranks at hand cannot be arranged as the settings ask."""


class LayoutError(HybridPSError):
    """A layout, array or key is not what the operation needs, or differs from the one registered."""


class GroupError(HybridPSError):
    """A collective operation could not be carried out."""


class ServerError(HybridPSError):
    """A parameter server refused a request, or is gone."""


class ProtocolError(ServerError):
    """A message is not of the form that the protocol prescribes."""


class DeadlineError(HybridPSError):
    """Something awaited did not come in time."""
