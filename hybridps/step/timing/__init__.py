"""How long the parts of a step take, and which rank or group keeps the others waiting.

`TimeSpent` is the reducer's record. `Pace` compares the ranks of a group. `shorten_time_slice` is for the communication
thread.
"""

from hybridps.step.timing.pace import Pace
from hybridps.step.timing.time_slice import shorten_time_slice
from hybridps.step.timing.time_spent import TimeSpent

__all__ = ["Pace", "TimeSpent", "shorten_time_slice"]
