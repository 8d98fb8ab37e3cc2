"""eamsgd: Elastic SGD whose workers update by Nesterov's momentum (Zhang, Choromanska, LeCun, 2015, section 3).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| as often as is cheap, or as given | servers | weights | free-running | Elastic | exact |

Each worker looks ahead, computes the gradient there and corrects, with momentum mu:

    v <- mu v - eta g(w + mu v),   w <- w + v.

The framework computes this update. The exchange is that of `elastic`; the velocity v is not exchanged. A KVStore
refuses an optimizer that is not Nesterov's momentum. It cannot see the optimizer of a Trainer that updates by itself;
there the choice is left to the user.
"""

from __future__ import annotations

from msgspec.structs import replace

from hybridps.algorithms import mpi_esgd
from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.ps.rules import Elastic


def row(asked: Asked) -> Row:
    """Return the row of `elastic`, with the optimizer that workers must use."""
    return replace(mpi_esgd.row(asked), optimizer="nesterov")


EAMSGD = Definition(row, rules=(Elastic,), also=("mpi-eamsgd", "dist-eamsgd"))
