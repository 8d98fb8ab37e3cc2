"""Groups and parameter servers: the cost of each hybridps algorithm, and the search for the best configuration.

A caller predicts one configuration (`scheme_of`, `predict_scheme`), searches for the best one (`plan`), or compares a
prediction with a measured run (`compare`).
"""

from hybridps.oracle.hybrid.comparison import Row, compare
from hybridps.oracle.hybrid.ps_tier import PLACEMENTS, Tier, placement_bytes_per_second
from hybridps.oracle.hybrid.schemes import ALGORITHMS, Scheme, predict_scheme, scheme_of
from hybridps.oracle.hybrid.search import Constraints, Plan, constraints_of, plan

__all__ = [
    "ALGORITHMS",
    "PLACEMENTS",
    "Constraints",
    "Plan",
    "Row",
    "Scheme",
    "Tier",
    "compare",
    "constraints_of",
    "placement_bytes_per_second",
    "plan",
    "predict_scheme",
    "scheme_of",
]
