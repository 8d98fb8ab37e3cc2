from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.config import Settings
from hybridps.errors import PlanError
from hybridps.mpi_groups.plan import SERVER, WORKER, make_plan


def plan(workers: int, **settings):
    return make_plan([WORKER] * workers, ["a"] * workers, Settings(**settings))


@pytest.mark.parametrize(
    ("workers", "settings", "sizes"),
    [
        (1, {}, (1,)),
        (4, {}, (4,)),
        (4, {"groups": 2}, (2, 2)),
        (5, {"groups": 2}, (3, 2)),
        (4, {"group_sizes": (3, 1)}, (3, 1)),
        (3, {"workers_per_group": 1}, (1, 1, 1)),
        (5, {"workers_per_group": 2}, (2, 2, 1)),
        (3, {"workers_per_group": 1, "group_sizes": (1, 1, 1)}, (1, 1, 1)),
    ],
)
def test_group_sizes(workers: int, settings, sizes) -> None:
    made = plan(workers, **settings)
    assert made.group_sizes == sizes
    assert [place.group for place in made.places] == [g for g, size in enumerate(sizes) for _ in range(size)]
    assert [place.worker for place in made.places] == list(range(workers))


@pytest.mark.parametrize(
    ("workers", "settings", "said"),
    [
        (5, {"group_sizes": (3, 3)}, "5 workers cannot form groups of 3 + 3 = 6 workers"),
        (2, {"groups": 3}, "2 workers cannot form 3 groups"),
        (4, {"groups": 3, "group_sizes": (2, 2)}, "3 groups were asked for"),
        (4, {"groups": 2, "workers_per_group": 1}, "are 4 groups, not 2"),
        (4, {"workers_per_group": 1, "group_sizes": (2, 2)}, "groups of 1 workers were asked for"),
        (2, {"group_index": 0}, "needs HYBRIDPS_GROUP_SIZES"),
        (2, {"group_index": 2, "group_sizes": (2, 2)}, "group index 2 does not exist"),
        (3, {"group_index": 1, "group_sizes": (2, 2)}, "group 1 must have 2 workers, and 3 were started"),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(workers: int, settings, said: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(workers, **settings)
    assert said in str(error.value)


def test_no_worker() -> None:
    with pytest.raises(PlanError, match="none of the 1 ranks is a worker"):
        make_plan([SERVER], ["a"], Settings())


def test_servers_among_the_ranks() -> None:
    made = make_plan([SERVER, WORKER, WORKER, SERVER, WORKER], ["a"] * 5, Settings(groups=2))
    assert made.server_ranks == (0, 3)
    assert [place.worker for place in made.places] == [-1, 0, 1, -1, 2]
    assert [place.is_leader for place in made.places] == [False, True, False, False, True]


def test_one_world_for_each_group() -> None:
    made = make_plan([WORKER] * 2, ["a"] * 2, Settings(group_index=1, group_sizes=(3, 2, 1)))
    assert [place.worker for place in made.places] == [3, 4]
    assert [place.group for place in made.places] == [1, 1]
    assert (made.workers, made.groups) == (6, 3)


def test_nodes() -> None:
    hosts = ["a", "a", "b", "a"]
    assert [p.node for p in make_plan([WORKER] * 4, hosts, Settings()).places] == [0, 0, 1, 0]
    assert [p.node for p in make_plan([WORKER] * 4, hosts, Settings(ranks_per_node=2)).places] == [0, 0, 1, 1]


@given(workers=st.integers(1, 60), groups=st.integers(1, 60))
def test_every_worker_has_one_place(workers: int, groups: int) -> None:
    if groups > workers:
        return
    made = plan(workers, groups=groups)
    assert sum(made.group_sizes) == workers
    assert max(made.group_sizes) - min(made.group_sizes) <= 1
    assert len({(place.group, place.group_rank) for place in made.places}) == workers
    assert sum(place.is_leader for place in made.places) == groups
