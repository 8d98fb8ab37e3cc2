"""When is a round complete, and who is answered when: pure state machines over the contributions of groups.

A group is named by its index. All groups that are expected take part from the beginning, whether they have come yet
or not, so that others wait for them. A clock is a record, part of what the groups agree on; `start` makes its rounds.
"""

from hybridps.ps.clocks.clock import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.clocks.rounds import Part, Rounds, Verdict
from hybridps.ps.clocks.stale import MOST_CELLS

__all__ = ["MOST_CELLS", "BoundedStale", "BulkSynchronous", "Clock", "FreeRunning", "Part", "Rounds", "Verdict"]
