"""Groups and parameter servers: the cost of each hybridps algorithm, and the search for the best configuration.

A caller predicts one configuration (`scheme_of`, `predict_scheme`), or searches for the best one (`plan`).
"""

from hybridps.oracle.hybrid.ps_tier import PLACEMENTS, placement_bytes_per_second
from hybridps.oracle.hybrid.schemes import ALGORITHMS, predict_scheme, scheme_of
from hybridps.oracle.hybrid.search import Plan, constraints_of, plan

__all__ = [
    "ALGORITHMS",
    "PLACEMENTS",
    "Plan",
    "constraints_of",
    "placement_bytes_per_second",
    "plan",
    "predict_scheme",
    "scheme_of",
]
