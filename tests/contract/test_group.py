"""The Groups that need no MPI."""

from __future__ import annotations

import numpy as np
import pytest
from group_contract import CHECKS

from hybridps.errors import GroupError
from hybridps.mpi_groups import SoloGroup, ThreadGroup


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
class TestContract:
    def test_solo(self, check) -> None:
        check(SoloGroup())

    @pytest.mark.parametrize(
        "size",
        [
            1,
            2,
            3,
            *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5)),
            pytest.param(7, marks=pytest.mark.nightly),
        ],
    )
    def test_threads(self, check, size: int) -> None:
        ThreadGroup.run(size, check)


def test_a_fault_on_one_rank_ends_all() -> None:
    def work(group: ThreadGroup) -> None:
        for number in range(5):
            if (group.rank, number) == (1, 2):
                raise GroupError("injected fault")
            group.allreduce_(np.ones(3))

    with pytest.raises(GroupError, match="injected fault"):
        ThreadGroup.run(3, work)


def test_a_missing_rank_is_noticed() -> None:
    with pytest.raises(GroupError, match="waited in vain"):
        ThreadGroup.run(2, lambda group: group.barrier() if group.rank else None, deadline_seconds=0.2)
