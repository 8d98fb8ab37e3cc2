"""The rules: what a server does with the contributions of a round. Each file has one rule or one family.

Callers use the rules by name, `apply_` for one round on a chunk, and `warm_up` to compile a rule before its first use.
A new rule is a `Rule` with a tag and an update, and a line here; `kernel` makes the compiled loop.
"""

from __future__ import annotations

from hybridps.ps.rules.adam import Adam
from hybridps.ps.rules.elastic import Elastic, ElasticTogether
from hybridps.ps.rules.foreign import Foreign
from hybridps.ps.rules.outer import Outer
from hybridps.ps.rules.rule import Rule, add_up_, apply_, warm_up
from hybridps.ps.rules.sgd import SGD, Momentum, Nesterov
from hybridps.ps.rules.sums import Mean, Sum

AnyRule = Sum | Mean | SGD | Momentum | Nesterov | Adam | Elastic | ElasticTogether | Outer | Foreign

__all__ = [
    "SGD",
    "Adam",
    "AnyRule",
    "Elastic",
    "ElasticTogether",
    "Foreign",
    "Mean",
    "Momentum",
    "Nesterov",
    "Outer",
    "Rule",
    "Sum",
    "add_up_",
    "apply_",
    "warm_up",
]
