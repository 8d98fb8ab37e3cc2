"""What happens when a rank does not come, and when there is no shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from hybridps.errors import DeadlineError
from hybridps.memory import SharedMemory
from hybridps.mpi_groups import ThreadGroup
from hybridps.tensor_collectives import Levels, allreduce_


def test_a_missing_rank_is_named() -> None:
    def work(group: ThreadGroup) -> None:
        levels = Levels(group, [0] * group.size, deadline_seconds=0.5)
        tensor = levels.tensor(100_000, "float32")
        if group.rank != 2:
            allreduce_(tensor, group)

    with pytest.raises(DeadlineError, match="rank 2 of the node did not come"):
        ThreadGroup.run(3, work)


def test_without_shared_memory_it_is_said_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> SharedMemory:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SharedMemory, "create", refuse)

    def work(group: ThreadGroup) -> tuple[str, np.ndarray]:
        levels = Levels(group, [rank // 2 for rank in range(group.size)])
        tensor = levels.tensor(100_000, "float32")
        tensor.vectors[0][:] = group.rank + 1
        allreduce_(tensor, group)
        return levels.note, tensor.vectors[0]

    for note, vector in ThreadGroup.run(4, work):
        assert "No space left on device" in note
        assert (vector == 10).all()


def test_one_rank_that_cannot_attach_lets_all_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    attach = SharedMemory.attach

    def sometimes(name: str, nbytes: int) -> SharedMemory:
        return attach("/nowhere", nbytes)

    monkeypatch.setattr(SharedMemory, "attach", sometimes)
    notes = ThreadGroup.run(3, lambda group: Levels(group, [0] * group.size).note)
    assert len(set(notes)) == 1
    assert "/nowhere" in notes[0]
