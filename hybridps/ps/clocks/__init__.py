"""When a round is complete, and who is answered when: pure state machines over the contributions of groups.

A group is identified by its number. All expected groups take part from the beginning, whether or not they have started,
so that others wait for them. A clock is a record that the groups agree on; its `start` makes the rounds.
"""

from hybridps.ps.clocks.clock import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.clocks.rounds import Part, Rounds, Verdict
from hybridps.ps.clocks.stale import MOST_CELLS

__all__ = ["MOST_CELLS", "BoundedStale", "BulkSynchronous", "Clock", "FreeRunning", "Part", "Rounds", "Verdict"]
