"""easgd: Elastic SGD in its synchronous form (Zhang, Choromanska, LeCun, 2015, arXiv 1412.6651, equations 2 and 3).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | servers | weights | bulk-synchronous | ElasticTogether | exact |

All C groups average with the centre at the same time. Both sides use the values from before the exchange:

    w_i <- w_i - alpha (w_i - centre),   centre <- (1 - C alpha) centre + C alpha mean(w).

This is stable for 0 <= C alpha <= 1; alpha is 0.9 / C by default. `AverageWeights` describes the steps inside a group.
"""

from __future__ import annotations

from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import ElasticTogether


def row(asked: Asked) -> Row:
    """Return the row: all groups exchange weights in the same round."""
    return Row(
        trigger=asked.trigger,
        tier="servers",
        sends="weights",
        holds="weights",
        clock=asked.clock or BulkSynchronous(),
        rule=asked.rule or ElasticTogether(asked.alpha),
        rho=asked.settings.rho,
    )


EASGD = Definition(row, rules=(ElasticTogether,), also=("mpi-easgd", "dist-easgd"))
