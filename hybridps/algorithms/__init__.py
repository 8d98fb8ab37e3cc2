"""The algorithms. Each decides what is communicated and when; callers use `Algorithm`, and choose one by its name.

A new one is a file beside these, and a line in `choose.py`.
"""

from hybridps.algorithms.algorithm import UNDER_WAY, Algorithm, reduce_all_
from hybridps.algorithms.choose import ALGORITHMS, choose_row, make_algorithm, resolve, short_name
from hybridps.algorithms.mpi_esgd import MpiESGD
from hybridps.algorithms.mpi_sgd import MpiSGD
from hybridps.algorithms.row import Row
from hybridps.algorithms.server_sgd import ServerSGD
from hybridps.ps.model import Rules
from hybridps.ps.rules import AnyRule

__all__ = [
    "ALGORITHMS",
    "UNDER_WAY",
    "Algorithm",
    "AnyRule",
    "MpiESGD",
    "MpiSGD",
    "Row",
    "Rules",
    "ServerSGD",
    "choose_row",
    "make_algorithm",
    "reduce_all_",
    "resolve",
    "short_name",
]
