"""GoSGD, `gosgd`: groups push their weights, with a share, to random others (Blot et al., 2016).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every tau steps, or as given | gossip | weights, with half of the share | none | weighted mean | exact |

A sender s halves its share a_s and sends (w_s, a_s). The receiver r then computes

    w_r <- (a_r w_r + a_s w_s) / (a_r + a_s),    a_r <- a_r + a_s.

All shares begin with 1 / groups. Their sum, including the shares under way, is always 1. The sender does not wait. In
the paper a group pushes in each step with probability p. Here it pushes when the trigger says so; every:TAU corresponds
to p = 1 / TAU.
"""

from __future__ import annotations

from hybridps.algorithms.gossip import Gossip, gossiping
from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.errors import ConfigError
from hybridps.triggers import EventGrad


def row(asked: Asked) -> Row:
    """Return the row: weights with a share, sent to random peers."""
    return pushing(asked, "random")


def pushing(asked: Asked, usual: str) -> Row:
    """Return the row of a pushing algorithm, with its `usual` topology. Raises ConfigError for a trigger on parts."""
    if isinstance(asked.trigger, EventGrad) or getattr(asked.trigger, "chunk", None) is not None:
        raise ConfigError(
            f"the trigger {asked.settings.trigger!r} decides on parts of the weights, and shares are of all of them: "
            "use a trigger for the whole model, or the algorithm gossip"
        )
    return gossiping(asked, "push", usual)


GOSGD = Definition(row, Gossip, gossips=True)
