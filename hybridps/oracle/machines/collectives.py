"""Costs of ring collectives (ParaDL, section "communication"), in which each PE sends p - 1 messages."""

from __future__ import annotations

from hybridps.oracle.machines.machine import Link


def allreduce_seconds(link: Link, pes: int, message_bytes: float) -> float:
    """T_allreduce = 2 (p - 1) (a + m b / p) of a vector of m bytes."""
    return 2 * (pes - 1) * link.message_seconds(message_bytes / pes)


def allgather_seconds(link: Link, pes: int, message_bytes: float) -> float:
    """T_allgather = (p - 1) (a + m b), where m is the contribution of one PE."""
    return (pes - 1) * link.message_seconds(message_bytes)
