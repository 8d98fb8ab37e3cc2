"""The algorithms. Each decides what is communicated and when; callers use `Algorithm`, and choose one by its name.

A new one is a file beside these, and a line in `choose.py`; or a `Definition` that another package offers as an entry
point of the group `hybridps.algorithms`.
"""

from hybridps.algorithms.algorithm import UNDER_WAY, Algorithm, reduce_all_
from hybridps.algorithms.average_weights import AverageWeights
from hybridps.algorithms.choose import (
    ALGORITHMS,
    DEFAULT,
    KNOWN,
    choose_row,
    definition,
    make_algorithm,
    resolve,
    short_name,
)
from hybridps.algorithms.mpi_sgd import MpiSGD
from hybridps.algorithms.row import USUAL, Asked, Definition, Row
from hybridps.algorithms.server_sgd import ServerSGD
from hybridps.ps.model import Rules
from hybridps.ps.rules import AnyRule

__all__ = [
    "ALGORITHMS",
    "DEFAULT",
    "KNOWN",
    "UNDER_WAY",
    "USUAL",
    "Algorithm",
    "AnyRule",
    "Asked",
    "AverageWeights",
    "Definition",
    "MpiSGD",
    "Row",
    "Rules",
    "ServerSGD",
    "choose_row",
    "definition",
    "make_algorithm",
    "reduce_all_",
    "resolve",
    "short_name",
]
