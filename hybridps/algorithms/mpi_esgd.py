"""mpi-ESGD, `elastic`: synchronous SGD inside a group, Elastic SGD across groups (MXNET-MPI, 2018).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| as often as is cheap, or as given | servers | weights | free-running, or as given | Elastic, or another | exact |

When the trigger says so, the group and the centre move towards each other (Zhang, Choromanska, LeCun, 2015):

    d = alpha (w - centre),   centre <- centre + d (Elastic1),   w <- w - d (Elastic2).

alpha is 0.9 / C for C groups by default. With groups of one worker this is dist-ESGD. `AverageWeights` describes the
steps inside a group.
"""

from __future__ import annotations

from hybridps.algorithms.row import USUAL, Asked, Definition, Row
from hybridps.ps.clocks import FreeRunning
from hybridps.ps.rules import Elastic, ElasticTogether, Mean, Outer
from hybridps.triggers import Adapt

RULES = (Elastic, ElasticTogether, Outer, Mean)
"""The rules that can be applied to weights."""

OFTEN = Adapt(0, share=0.1, silence=USUAL.tau)
"""The default trigger where a group waits for no other group. The group averages in every step if that takes at most a
tenth of its time, and less often otherwise, but at least as often as `USUAL`."""


def row(asked: Asked) -> Row:
    """Return the row: weights, exchanged by the given rule. `Outer` applies an outer optimizer to the difference."""
    rule = asked.rule or Elastic(asked.alpha)
    clock = asked.clock or rule.clocks[0]()
    by_itself = isinstance(clock, FreeRunning) and asked.settings.backend == "hybridps"
    return Row(
        trigger=asked.trigger_or(OFTEN if by_itself else USUAL),
        tier="servers",
        sends="weights",
        holds="weights",
        clock=clock,
        rule=rule,
        rho=asked.settings.rho,
        alpha_of_groups=by_itself and asked.rule is None and asked.settings.alpha is None and asked.settings.racks == 1,
    )


ELASTIC = Definition(row, rules=RULES, also=("mpi-esgd", "dist-esgd"))
