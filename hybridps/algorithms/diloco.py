"""diloco: an outer optimizer on the averaged difference (DiLoCo, Douillard et al., 2023, arXiv 2311.08105).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | servers | weights | bulk-synchronous | Outer | exact |

Each group trains alone for tau steps with any optimizer (in the paper AdamW, with tau = 500). The servers take the mean
of the groups' moves as the gradient of Nesterov's momentum, with rate 0.7 and momentum 0.9 by default:

    d = centre - mean(w),   v <- momentum v + d,   centre <- centre - rate (d + momentum v),   w_i <- centre.

rate = 1 and momentum = 0 give `local`. `AverageWeights` describes the steps inside a group.
"""

from __future__ import annotations

from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import Outer


def row(asked: Asked) -> Row:
    """Return the row: all groups send weights and receive the centre that the outer optimizer computes from them."""
    return Row(
        trigger=asked.trigger,
        tier="servers",
        sends="weights",
        holds="weights",
        clock=asked.clock or BulkSynchronous(),
        rule=asked.rule or Outer(rate=asked.settings.outer_rate, momentum=asked.settings.outer_momentum),
    )


DILOCO = Definition(row, rules=(Outer,), also=("mpi-diloco", "dist-diloco"))
