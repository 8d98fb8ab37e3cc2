"""The rules that servers know. A new one is a struct with a tag beside these, and a line here."""

from __future__ import annotations

from hybridps.ps.rules.adam import Adam
from hybridps.ps.rules.elastic import Elastic, ElasticTogether
from hybridps.ps.rules.outer import Outer
from hybridps.ps.rules.rule import Rule, add_up_, apply_, warm_up
from hybridps.ps.rules.sgd import SGD, Momentum, Nesterov
from hybridps.ps.rules.sums import Mean, Sum

AnyRule = Sum | Mean | SGD | Momentum | Nesterov | Adam | Elastic | ElasticTogether | Outer

__all__ = [
    "SGD",
    "Adam",
    "AnyRule",
    "Elastic",
    "ElasticTogether",
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
