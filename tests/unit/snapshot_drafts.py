"""Snapshots that tests write by themselves."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from hybridps.memory import Layout
from hybridps.ps.clocks import FreeRunning
from hybridps.ps.model import TableSpec
from hybridps.ps.rules import Adam
from hybridps.ps.server.snapshots.writing import Draft, Writer

SPEC = TableSpec(Layout.of("float32", {"w": (40,)}), Adam(), FreeRunning(), 64, 0, 1)
LENGTHS = (16, 16, 16)
"""Of the chunks; a layout makes whole cache lines."""


def values(number, length=16):
    """The centre and the states of a chunk in snapshot `number`."""
    return [np.full(length, number + array / 4, np.float32) for array in range(3)]


def write(folder, number, tables=(("w", SPEC),), known=None, job="job"):
    """Write a snapshot in which everything says its number; whether it was completed."""
    spec = tables[0][1]
    place = folder.of(job, spec.server, spec.servers)
    with closing(Writer(lambda: None)) as writer:
        draft = Draft(writer, place, job, number, tables, {name for name, _ in tables} if known is None else known)
        draft.begin()
        owned = spec.chunk_map().owned_between(spec.server, 0, spec.layout.length)
        for index in range(len(tables)):
            for at in range(len(owned)):
                draft.write(index, at, values(number), number + at)
        return writer.ended_seconds is not None


def first_values(found):
    """The first numbers of the centre and the states of all chunks, and the steps: each once."""
    read = [found.read(at, length) for at, length in enumerate(LENGTHS)]
    return {float(array[0]) for arrays, _ in read for array in arrays}, [step for _, step in read]
