"""An outer optimizer on the averaged difference (DiLoCo, Douillard et al., 2023, arXiv 2311.08105)."""

from __future__ import annotations

from hybridps.compiled import compiled
from hybridps.ps.rules.rule import Rule
from hybridps.ps.rules.sgd import Fraction, NotNegative


class Outer(Rule, frozen=True, tag="outer", kw_only=True):
    """The groups contribute their weights w_i after some local steps. With d = centre - mean(w), Nesterov's momentum:

        v <- momentum v + d,   centre <- centre - rate (d + momentum v)

    The answer is the centre, from which all groups continue. rate = 1 and momentum = 0 average the weights.
    """

    states = 1

    rate: NotNegative = 0.7
    momentum: Fraction = 0.9

    @staticmethod
    @compiled
    def update_(total, centre, state, numbers):  # type: ignore[no-untyped-def]
        rate, momentum, contributions = numbers
        v = state[0]
        for i in range(len(centre)):
            d = centre[i] - total[i] / contributions
            v[i] = momentum * v[i] + d
            centre[i] -= rate * (d + momentum * v[i])
        return centre
