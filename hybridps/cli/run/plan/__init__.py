"""The plan of a launch: what `hybridps run` will start, decided and checked before anything starts.

`make_launch` returns a `Launch`, with a `GroupLaunch` for each group and a `ServerLaunch` for each server. The files
for hosts, places, environment and the user's command read single options.
"""

from __future__ import annotations

from hybridps.cli.run.plan.launch import GroupLaunch, Launch, ServerLaunch
from hybridps.cli.run.plan.make import make_launch

__all__ = ["GroupLaunch", "Launch", "ServerLaunch", "make_launch"]
