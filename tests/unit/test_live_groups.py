"""Groups that are slower than the others, as a launcher sees them in the status files of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from hybridps.events import Recovered, Slowed
from hybridps.live import GroupStatus, LaunchStatus, Live, WorkerStatus
from hybridps.live.reading import Seen
from hybridps.live.slow import LOOKS, LOOKS_IF_CROWDED
from hybridps.watch.silent import SilentGroups
from hybridps.watch.slow import EXCHANGES, SlowGroups


def worker(number: int, second: int, delayed: float = 0.0, **more) -> WorkerStatus:
    """The status at this second. `delayed`: for how much of each second a thread waited for a core."""
    given = {
        "step_seconds": 0.1,
        "own_seconds": 0.08,
        "program_seconds": 0.01,
        "steps": 10 * second,
        "paces": second,
        "exchanges": second,
    }
    place = {"worker": number, "workers": 3, "group": number, "groups": 3, "group_rank": 0}
    totals = {"seconds": second, "cpu_seconds": 0.8 * second, "delayed_seconds": delayed * second}
    return WorkerStatus(run="r", host="h", pid=1, started_at=0.0, **totals, **place, **given | more)


def watched(groups: SlowGroups, seconds: range, slow: Mapping[str, float], every: int = 1) -> list[tuple[str, object]]:
    """What is new after some looks, one a second, at three groups of which the last one has these figures.

    They measure their pace `every` so many seconds.
    """
    for second in seconds:
        before, now = (
            Live(
                {n: Seen(worker(n, s, **{"paces": s // every, **(slow if n == 2 else {})}), 0.0) for n in range(3)},
                {},
                None,
            )
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


def test_a_group_whose_threads_wait_for_cores_is_not_said_to_load() -> None:
    slow = {"own_seconds": 0.2, "step_seconds": 0.22, "program_seconds": 0.13, "delayed": 0.9}
    ((said, event),) = watched(SlowGroups(1.5), range(1, LOOKS + 1), slow)
    assert said.endswith("its threads wait for cores that other processes use or a CPU limit withholds")
    assert event.reason == "cpu"


def test_on_a_crowded_host_more_looks_must_agree() -> None:
    groups, slow = SlowGroups(1.5), {"own_seconds": 0.2, "step_seconds": 0.22, "is_crowded": True}
    assert watched(groups, range(1, LOOKS_IF_CROWDED), slow) == []
    assert len(watched(groups, range(LOOKS_IF_CROWDED, LOOKS_IF_CROWDED + 1), slow)) == 1


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


def test_a_group_that_does_not_measure_its_pace_is_not_judged() -> None:
    assert watched(SlowGroups(1.5), range(1, 10), {"own_seconds": 0.5, "steps": 7, "paces": 1}) == []


def test_a_time_that_is_looked_at_several_times_counts_once() -> None:
    """With steps of half a second, workers measure their pace every 2.5 seconds."""
    groups, slow = SlowGroups(1.5), {"own_seconds": 0.2, "step_seconds": 0.22}
    assert watched(groups, range(3, 3 * LOOKS), slow, every=3) == []
    assert watched(groups, range(3 * LOOKS, 3 * LOOKS + 3), {}, every=3) == [], "one time like those of the others"
    again = 3 * LOOKS + 3
    assert watched(groups, range(again, again + 3 * LOOKS - 3), slow, every=3) == []
    assert len(watched(groups, range(again + 3 * LOOKS - 3, again + 3 * LOOKS), slow, every=3)) == 1


def launched(running: bool = True, restarts: int = 0) -> Seen[LaunchStatus]:
    """The launch of two groups."""
    known = [GroupStatus(number=n, size=1, running=running, restarts=restarts) for n in (0, 1)]
    place = {"run": "r", "host": "h", "pid": 1, "started_at": 0.0, "seconds": 1.0}
    return Seen(LaunchStatus(**place, command=[], workers=3, groups=known, servers=[]), 0.0)


def test_a_group_without_a_sign_of_life_is_told_once_each_time() -> None:
    seconds = [0.0]
    groups = SilentGroups(lost_seconds=7.5, deadline_seconds=1000.0, clock=lambda: seconds[0])

    def told(looks: int, *written: int, life: int = 0, restarts: int = 0, ended: bool = False, running: bool = True):
        """The groups that are new after looks, one a second, at which group 0's workers have written these statuses."""
        launch = launched(running, restarts)
        for _ in range(looks):
            seconds[0] += 1
            first = [
                replace(worker(n, w, ended=ended), group=0, group_rank=n, life=life) for n, w in enumerate(written)
            ]
            other = replace(worker(2, int(seconds[0])), group=1, life=restarts)
            workers = {each.worker: Seen(each, 0.0) for each in (*first, other)}
            groups.look(Live({}, {}, None), Live(workers, {}, launch))
        return [int(groups.news.popleft().split()[1]) for _ in range(len(groups.news))]

    assert told(30, 1, 1) == []
    assert told(20, 1, 2) == [], "a worker of the group reports the other one"
    assert told(12, 1, 2) == [0]
    assert told(50, 1, 2) == []
    assert told(29, 2, 2) == []
    assert told(29, 3, 3) == []
    assert told(50, 3, 3, restarts=1) == [], "the group's next life has not begun"
    assert told(31, 4, 4, life=1, restarts=1) == [0]
    assert told(50, 5, 5, life=1, restarts=1, ended=True) == []
    assert told(50, 5, 5, life=1, restarts=1, running=False) == []
    seconds[0] += 1000.0  # the launcher was stopped too
    assert told(28, 6, 6, life=1, restarts=1) == []
    assert told(3, 6, 6, life=1, restarts=1) == [0]


def test_a_group_that_does_no_step_is_told_once_until_it_goes_on() -> None:
    seconds = [0.0]
    groups = SilentGroups(lost_seconds=7.5, deadline_seconds=48.0, clock=lambda: seconds[0])
    launch = launched()

    def told(looks: int, steps: int) -> list[str]:
        for _ in range(looks):
            seconds[0] += 1
            now = int(seconds[0])
            workers = {0: Seen(worker(0, now), 0.0), 1: Seen(worker(1, now, steps=steps), 0.0)}
            groups.look(Live({}, {}, None), Live(workers, {}, launch))
        return [groups.news.popleft() for _ in range(len(groups.news))]

    assert told(60, 5) == []
    (said,) = told(30, 5)
    assert said == (
        "group 1 has done no step for 60 s, and the launch waits for it: does its program hang (1 worker; worker 1 is "
        "process 1 on h)?"
    )
    assert told(60, 6) == []
    assert len(told(30, 6)) == 1
