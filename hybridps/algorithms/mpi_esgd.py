"""mpi-ESGD, `elastic`: synchronous SGD inside a group, Elastic SGD across groups (MXNET-MPI, 2018).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | servers | weights | free-running, or as given | Elastic, or another | exact |

When it is time, the group and the centre move towards each other (Zhang, Choromanska, LeCun, 2015):

    d = alpha (w - centre),   centre <- centre + d (Elastic1),   w <- w - d (Elastic2).

alpha is 0.9 / C for C groups by default. dist-ESGD is the case of groups of one worker. `AverageWeights` has the rest.
"""

from __future__ import annotations

from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.ps.rules import Elastic, ElasticTogether, Mean, Outer

RULES = (Elastic, ElasticTogether, Outer, Mean)
"""The rules that have a meaning for weights."""


def row(asked: Asked) -> Row:
    """Weights, by the rule that is given; `Outer` is an outer optimiser on the difference."""
    rule = asked.rule or Elastic(asked.alpha)
    return Row(
        trigger=asked.trigger,
        tier="servers",
        sends="weights",
        holds="weights",
        clock=asked.clock or rule.clocks[0](),
        rule=rule,
        rho=asked.settings.rho,
    )


ELASTIC = Definition(row, rules=RULES, also=("mpi-esgd", "dist-esgd"))
