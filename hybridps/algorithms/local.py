"""local: local SGD, or periodic averaging (Stich, 2018, arXiv 1805.09767).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | servers | weights | bulk-synchronous | Mean | exact |

Each group trains alone for tau steps. Then all C groups continue from the mean of their weights:

    w_i <- (w_1 + ... + w_C) / C.

With a trigger on the change, one group whose trigger fires makes all groups average; `dynamic:DELTA` is dynamic
averaging (Kamp et al., 2018). `AverageWeights` describes the steps inside a group.
"""

from __future__ import annotations

from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import Mean


def row(asked: Asked) -> Row:
    """Return the row: all groups send weights and receive their mean."""
    return Row(
        trigger=asked.trigger,
        tier="servers",
        sends="weights",
        holds="weights",
        clock=asked.clock or BulkSynchronous(),
        rule=asked.rule or Mean(),
    )


LOCAL = Definition(row, rules=(Mean,), also=("local-sgd", "mpi-local", "dist-local"))
