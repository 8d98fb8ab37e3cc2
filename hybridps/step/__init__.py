"""The training step without a framework: gradients are reduced bucket by bucket while backward computes the others.

A front end makes one `Schedule` for a process. For each model, it makes `Gradients` and `SparseGradients` (sums),
`InitialValues`, and `Weights` (averaging), which post the program's requests to that schedule. `ArrayModel` is the
front end for NumPy.
"""

from hybridps.step.agreement import DifferentLayoutsError, DisagreementError
from hybridps.step.arrays import ArrayModel
from hybridps.step.gradients import Gradients
from hybridps.step.job_context import JobContext
from hybridps.step.plan import KeySpec
from hybridps.step.schedule import Item, Schedule
from hybridps.step.sparse import SparseGradients, SparseRows
from hybridps.step.weights import InitialValues, Weights

__all__ = [
    "ArrayModel",
    "DifferentLayoutsError",
    "DisagreementError",
    "Gradients",
    "InitialValues",
    "Item",
    "KeySpec",
    "Schedule",
    "JobContext",
    "SparseGradients",
    "SparseRows",
    "Weights",
]
