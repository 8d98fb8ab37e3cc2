"""The triggers: when an algorithm communicates. They are pure; each file has one trigger.

A trigger is a frozen record, equal on all ranks; `parse` makes one from text. `trigger.start(layout, weights)` makes
the `State` of one table. In every step the caller asks the state whether the table is `due`, and calls `sent` after
each exchange.
"""

from __future__ import annotations

from hybridps.triggers.adapt import Adapt
from hybridps.triggers.budget import Budget, parse_rate
from hybridps.triggers.change import Change
from hybridps.triggers.dynamic import Dynamic
from hybridps.triggers.eventgrad import EventGrad
from hybridps.triggers.every import Every
from hybridps.triggers.parse import TRIGGERS, AnyTrigger, parse
from hybridps.triggers.trigger import State, Trigger

__all__ = [
    "TRIGGERS",
    "Adapt",
    "AnyTrigger",
    "Budget",
    "Change",
    "Dynamic",
    "EventGrad",
    "Every",
    "State",
    "Trigger",
    "parse",
    "parse_rate",
]
