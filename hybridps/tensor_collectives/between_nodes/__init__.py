"""How the nodes of a group exchange data chunk by chunk: lanes, and the algorithms that run on them.

A caller uses `Lane`, and `ALLREDUCE` to choose how a chunk is combined over the ranks of a lane.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridps.tensor_collectives.between_nodes import chain, halving_doubling, ring
from hybridps.tensor_collectives.between_nodes.lane import PATIENCE_SECONDS, Lane, StepsOf
from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk

__all__ = ["ALLREDUCE", "PATIENCE_SECONDS", "Lane", "Steps", "StepsOf", "Talk", "chain", "ring"]


def _library(talk: Talk, part: np.ndarray) -> Steps:
    """Combine a chunk with the MPI library's own allreduce. It blocks, so only one chunk is under way at a time."""
    talk.lane.allreduce_(part, talk.op)
    yield from ()


ALLREDUCE: dict[str, Callable[[Talk, np.ndarray], Steps]] = {
    "node": ring.allreduce,
    "library": _library,
    "ring": ring.allreduce,
    "multi_ring": ring.multi_ring,
    "halving_doubling": halving_doubling.halving_doubling,
}
"""For each algorithm, the operation that combines a chunk over the ranks of a lane. On one node a lane has one rank."""
