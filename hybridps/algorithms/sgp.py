"""Stochastic gradient push, `sgp`: push-sum over a directed graph that changes in each step (Assran et al., 2019).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | gossip | weights and share, to the peers in turn | none | weighted mean | exact |

Push-sum keeps x and a share a, with w = x / a. A group with k peers in a step keeps x / (k + 1) and a / (k + 1), and
sends as much to each of them; receivers add what they get. In terms of w this is the weighted mean of GoSGD:

    w_r <- (a_r w_r + a_s w_s) / (a_r + a_s),    a_r <- a_r + a_s.

The usual topology is exponential. The paper updates x by the gradient. Here the script's optimizer updates w, which is
the same if n a = 1 for n groups, as in steps that all groups take together. This is the asynchronous form (overlap).
"""

from __future__ import annotations

from hybridps.algorithms.gosgd import pushing
from hybridps.algorithms.gossip import Gossip
from hybridps.algorithms.row import Asked, Definition, Row


def row(asked: Asked) -> Row:
    """Return the row: weights with a share, sent to the peers of a graph in turn."""
    return pushing(asked, "exponential")


SGP = Definition(row, Gossip, also=("stochastic-gradient-push",), gossips=True)
