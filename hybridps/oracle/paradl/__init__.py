"""The ParaDL model (Kahira et al., HPDC 2021): an epoch of a network on a machine with one parallel strategy.

A caller combines a network and a machine into `Work`, and asks `predict` for an `Answer`: the predicted times and
memory, whether the strategy is possible, and its bottlenecks.
"""

from hybridps.oracle.paradl.answers import (
    PAPER,
    Answer,
    Prediction,
    answer,
    predict,
    strategies_of,
    strategy_of,
)
from hybridps.oracle.paradl.work import Work

__all__ = [
    "PAPER",
    "Answer",
    "Prediction",
    "Work",
    "answer",
    "predict",
    "strategies_of",
    "strategy_of",
]
