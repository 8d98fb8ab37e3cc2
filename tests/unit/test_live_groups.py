"""Groups that are slower than the others, as a launcher sees them in the status files of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from hybridps.events import Recovered, Slowed
from hybridps.live import Live, WorkerStatus
from hybridps.live.reading import Seen
from hybridps.live.slow import LOOKS
from hybridps.watch.silent import SilentGroups
from hybridps.watch.slow import EXCHANGES, SlowGroups


def worker(number: int, second: int, **more) -> WorkerStatus:
    given = {
        "step_seconds": 0.1,
        "own_seconds": 0.08,
        "program_seconds": 0.01,
        "steps": 10 * second,
        "exchanges": second,
    }
    place = {"worker": number, "workers": 3, "group": number, "groups": 3, "group_rank": 0}
    return WorkerStatus(
        run="r", host="h", pid=1, started_at=0.0, seconds=second, cpu_seconds=0.8 * second, **place, **given | more
    )


def watched(groups: SlowGroups, seconds: range, slow: Mapping[str, float]) -> list[tuple[str, object]]:
    """What is new after some looks, one a second, at three groups of which the last one has these figures."""
    for second in seconds:
        before, now = (
            Live({n: Seen(worker(n, s, **(slow if n == 2 else {})), 0.0) for n in range(3)}, {}, None)
            for s in (second - 1, second)
        )
        groups.look(before, now)
    found = [*groups.news]
    groups.news.clear()
    return found


def test_a_group_is_named_after_three_looks_and_recovers() -> None:
    groups, slow = SlowGroups(1.5), {"own_seconds": 0.2, "step_seconds": 0.22, "program_seconds": 0.13}
    assert watched(groups, range(1, LOOKS), slow) == []
    (said, event), *rest = watched(groups, range(LOOKS, 10), slow)
    assert not rest
    assert said.startswith(
        "group 2 (worker 2 on h) is slow: its part of a step takes 200 ms, and that of the other groups"
    )
    assert event == Slowed(2, 10 * LOOKS, 0.2, 0.08, "loader", 2)
    assert groups.named[2].reason == "loader"
    ((said, event),) = watched(groups, range(10, 20), {})
    assert said == "group 2 keeps up with the other groups again"
    assert isinstance(event, Recovered)
    assert not groups.named


def exchanging(groups: SlowGroups, took: Iterable[Sequence[float]]) -> list[tuple[str, object]]:
    """What is new after one look for each row of `took`: the durations of the three groups' last exchanges."""
    for second, row in enumerate(took, 1):
        before, now = (
            Live({n: Seen(worker(n, s, exchange_seconds=row[n]), 0.0) for n in range(3)}, {}, None)
            for s in (second - 1, second)
        )
        groups.look(before, now)
    return [*groups.news]


def test_a_group_whose_exchanges_all_take_longer_has_a_slow_link() -> None:
    assert watched(SlowGroups(1.5), range(1, 2 * EXCHANGES), {"exchange_seconds": 0.9}) == []  # the others have none
    groups, slow = SlowGroups(1.5), [(0.2, 0.9, 0.2)]
    assert exchanging(groups, slow * (EXCHANGES + LOOKS - 2)) == []
    ((said, event),) = exchanging(groups, slow)
    assert "its fastest exchange takes 900 ms, and that of the other groups 200 ms" in said
    assert event.reason == "link"


def test_exchanges_that_the_server_or_other_processes_delay_do_not_make_a_slow_link() -> None:
    rng = np.random.default_rng(0)
    delayed = 0.003 + rng.lognormal(mean=np.log(0.006), sigma=1.3, size=(2000, 3))  # as on two cores with six processes
    assert exchanging(SlowGroups(1.5), delayed.tolist()) == []


def test_a_group_without_steps_is_not_compared() -> None:
    assert watched(SlowGroups(1.5), range(1, 10), {"own_seconds": 0.5, "steps": 7}) == []


def test_a_group_without_a_sign_of_life_is_told_once_each_time() -> None:
    groups = SilentGroups(lost_seconds=10.0)

    def told(*ages: float, ended: bool = False) -> list[int]:
        """The groups that are new, with these ages of the statuses of the first group's two workers."""
        first = [replace(worker(n, 1, ended=ended), group=0, group_rank=n) for n in range(2)]
        workers = {n: Seen(each, age) for n, (each, age) in enumerate(zip(first, ages, strict=True))}
        groups.look(Live({}, {}, None), Live(workers | {2: Seen(worker(2, 1), 0.5)}, {}, None))
        return [groups.news.popleft()[0] for _ in range(len(groups.news))]

    assert told(29.0, 29.0) == []
    assert told(31.0, 1.0) == [], "a worker of the group reports the other one"
    assert told(31.0, 31.0) == [0]
    assert told(32.0, 32.0) == []
    assert told(1.0, 1.0) == []
    assert told(40.0, 40.0, ended=True) == []
    assert told(40.0, 40.0) == [0]
