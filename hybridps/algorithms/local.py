"""local: local SGD, or periodic averaging (Stich, 2018, arXiv 1805.09767).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | servers | weights | bulk-synchronous | Mean | exact |

Each group trains alone for tau steps; then all C groups go on from the mean of their weights:

    w_i <- (w_1 + ... + w_C) / C.

With a trigger on the change, any group that fires makes all average: `dynamic:DELTA` is dynamic averaging (Kamp et al.,
2018). `AverageWeights` has the rest.
"""

from __future__ import annotations

from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import Mean


def row(asked: Asked) -> Row:
    """The mean of the weights of all groups."""
    return Row(
        trigger=asked.trigger,
        tier="servers",
        sends="weights",
        holds="weights",
        clock=asked.clock or BulkSynchronous(),
        rule=asked.rule or Mean(),
    )


LOCAL = Definition(row, rules=(Mean,), also=("local-sgd", "mpi-local", "dist-local"))
