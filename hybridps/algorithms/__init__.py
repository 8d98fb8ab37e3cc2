"""The algorithms. An algorithm decides what is communicated and when. Callers choose one by name and use the methods of
`Algorithm`.

To add an algorithm, write a file beside these and add a line to `choose.py`. Another package can offer a `Definition`
as an entry point of the group `hybridps.algorithms`.
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
from hybridps.ps.model import Joining, Rules
from hybridps.ps.rules import AnyRule
from hybridps.tiers import Exchange

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
    "Exchange",
    "Joining",
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
