"""A contribution to a chunk, and the answer to it, as the loop knows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridps.errors import HybridPSError
from hybridps.ps.clocks import Part
from hybridps.ps.model import Contribution


@dataclass(slots=True, eq=False)
class Exchange:
    """A contribution and the answer to it, which is remembered in case that the contribution comes again."""

    part: Part
    contribution: Contribution
    """Without values once it is over."""
    held_bytes: int = 0
    is_computing: bool = False
    """Whether it is wholly in a round."""
    rounds: int = 0
    """How many rounds that it is in have not ended."""
    is_due: bool = False
    """Whether it is answered when they have."""
    is_over: bool = False
    """Whether it was answered, or will not be: its group has left, or the round is void."""
    is_settled: bool = False
    """Whether the group has the answer."""
    reply: np.ndarray | None = None
    """The answer that is sent; remembered where it could not be made again."""
    error: HybridPSError | None = None
