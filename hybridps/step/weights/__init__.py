"""The weights of a model: their initial values, and averaging with others.

A front end uses `InitialValues` and `Weights`.
"""

from hybridps.step.weights.averaged import Weights, pull_centre
from hybridps.step.weights.initial import InitialValues

__all__ = ["InitialValues", "Weights", "pull_centre"]
