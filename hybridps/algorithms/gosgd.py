"""GoSGD, `gosgd`: groups push their weights, with a share, to random others (Blot et al., 2016).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | gossip | weights, with half of the share | none | weighted mean | exact |

A sender s halves its share a_s and sends (w_s, a_s). When the receiver r takes that in,

    w_r <- (a_r w_r + a_s w_s) / (a_r + a_s),    a_r <- a_r + a_s.

Shares begin with 1 / groups, and sum to 1 with what is under way. The sender does not wait. In the paper a group pushes
in each step with probability p; here when the trigger says so (every:TAU for p = 1 / TAU).
"""

from __future__ import annotations

from hybridps.algorithms.gossip import Gossip, gossiping
from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.errors import ConfigError
from hybridps.triggers import EventGrad


def row(asked: Asked) -> Row:
    """Weights with a share."""
    return pushing(asked, "random")


def pushing(asked: Asked, usual: str) -> Row:
    """The row of an algorithm that pushes, over its `usual` topology. Raises ConfigError for a trigger of parts."""
    if isinstance(asked.trigger, EventGrad) or getattr(asked.trigger, "chunk", None) is not None:
        raise ConfigError(
            f"the trigger {asked.settings.trigger!r} decides on parts of the weights, and shares are of all of them: "
            "use a trigger for the whole model, or the algorithm gossip"
        )
    return gossiping(asked, "push", usual)


GOSGD = Definition(row, Gossip, gossips=True)
