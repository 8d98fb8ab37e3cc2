"""What a rank knows of the servers of its job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ServersView:
    """What a rank knows of its servers. Each is asked for when it is needed; the defaults are those without servers."""

    payload_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Returns the payload bytes that this rank has sent to servers and received from them so far."""
    counted: Callable[[], tuple[int, int] | None] = lambda: None
    """Returns the numbers of groups and workers according to the servers; None on ranks that do not lead a group, and
    where these numbers never change."""
    behind: Callable[[], int | None] = lambda: None
    """Returns the group furthest behind the others, on a leader; None if none is."""
