"""What a launch writes to its run folder: when it started the workers, and what their scripts report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hybridps.config import Settings, without_secrets
from hybridps.errors import ConfigError
from hybridps.events import Configured, Ended, Evaluated, Event, EventLog, Joined, Launched, Restarted
from hybridps.progress import mean_of, parse_progress

if TYPE_CHECKING:
    from hybridps.report import Following


class Heard(NamedTuple):
    """What the launcher makes of a line of a worker."""

    hide: bool = False
    """Whether to hide the line: it is the report of one worker, and the launcher shows the mean of all."""
    messages: Sequence[str] = ()
    """The lines that the launcher prints now."""


_OVERDUE_EPOCHS = 2
"""An epoch is printed when a worker is so far ahead of it, also if others, whose group was away, have not."""


class RunLog:
    """The events of a launch, in `hybridps-launcher.jsonl`. Without a run folder, nothing is written."""

    def __init__(self, settings: Settings) -> None:
        self._folder, self._launch = settings.run_folder, settings.launch
        self._began = time.time()
        self._events = EventLog(self._folder, "launcher")
        self._events.emit(Configured(self._began, msgspec.to_builtins(without_secrets(settings))))
        self._following: Following | None = None
        self._parts: dict[float, dict[tuple[int, int], Evaluated]] = {}
        """What single workers have reported, by epoch; then by group and number."""
        self.latest: dict[tuple[int, int | None], Evaluated] = {}
        """The last report of each worker, by group and number; the number is None if the group does not number them."""
        self._reporters: set[tuple[int, int]] = set()
        """The group and number of each worker that has reported."""
        self._workers = 0
        """How many workers have run or reported."""
        self._groups = 1
        self.epoch, self.step = 0.0, 0
        """The epochs and steps done, as reported by the worker that is furthest ahead."""

    def launched(
        self, workers: int, groups: int, servers: int, command: Sequence[str], numbers: Sequence[int] = ()
    ) -> None:
        """Record the start of the workers. `numbers`: as in the event."""
        self._groups = groups
        self._events.emit(Launched(workers, groups, servers, list(command), list(numbers)))

    def restarted(self, group: int, life: int, status: int, anew: bool) -> None:
        """Record that a group is restarted, after its earlier life ended with `status`. `anew`: as in the event."""
        self._events.emit(Restarted(group, life, status, anew))

    def joined(self, joined: Sequence[int], groups: int, workers: int) -> None:
        """Record that groups have joined the job, and how many groups and workers it now has in all."""
        self._groups = groups
        self._events.emit(Joined(list(joined), groups, workers))

    def note(self, event: Event) -> None:
        """Record another event."""
        self._events.emit(event)

    def begin_anew(self) -> None:
        """Forget the progress that was reported: all groups start from the beginning."""
        self._parts.clear()
        self.epoch, self.step = 0.0, 0

    def hear(self, group: int, line: str, running: Mapping[int, int]) -> Heard:
        """Record the progress that a line of a group reports, if any.

        `group`: its number in the job. `running`: the number of workers of each group that still runs.
        """
        try:
            event = parse_progress(line)
        except ConfigError as error:
            return Heard(messages=[f"a progress line of group {group} is ignored: {error}"])
        if event is None:
            return Heard()
        event = msgspec.structs.replace(event, group=group)
        self._events.emit(event)
        before = self.latest.get((group, event.worker), event)
        self.latest[group, event.worker] = before.followed_by(event) if before.epoch == event.epoch else event
        self.epoch, self.step = max(self.epoch, event.epoch), max(self.step, event.step or 0)
        if event.worker is None:
            return Heard()
        self._reporters.add((group, event.worker))
        self._workers = max(self._workers, sum(running.values()), len(self._reporters))
        parts, worker = self._parts.setdefault(event.epoch, {}), (group, event.worker)
        parts[worker] = parts.get(worker, event).followed_by(event)
        over = [(epoch, self._over(epoch, parts, running)) for epoch, parts in self._waiting()]
        return Heard(hide=True, messages=self._say_all(over))

    def ended(self, status: int) -> list[str]:
        """Record the end. Return the lines that remain to be printed."""
        self._events.emit(Ended(status))
        self._events.close()
        return self._say_all(self._waiting())

    def _waiting(self) -> list[tuple[float, list[Evaluated]]]:
        """Return the reports that were not printed yet, by epoch, in order."""
        return [(epoch, [*parts.values()]) for epoch, parts in sorted(self._parts.items())]

    def _over(self, epoch: float, parts: list[Evaluated], running: Mapping[int, int]) -> list[Evaluated]:
        """Return the reports of an epoch that wait for no others: all workers that run have reported it, or some worker
        is far ahead. In that case, those of a group still wait for the whole group, or until it is far ahead itself.
        """
        reported = Counter(part.group for part in parts)
        if all(reported[group] >= size for group, size in running.items()):
            return parts
        patience = _OVERDUE_EPOCHS if len(self._reporters) > 1 else 0  # the others may never report
        if epoch == self.epoch or epoch > self.epoch - patience:
            return []
        ahead = {group for group, worker in self._reporters if self.latest[group, worker].epoch >= epoch + patience}
        late = {group for group, size in running.items() if reported[group] < size} - ahead
        return [part for part in parts if part.group not in late]

    def _say_all(self, over: Sequence[tuple[float, list[Evaluated]]]) -> list[str]:
        """Return the lines of reports that wait for no others, and forget the reports."""
        for epoch, parts in over:
            if rest := {who: part for who, part in self._parts.pop(epoch, {}).items() if part not in parts}:
                self._parts[epoch] = rest
        return [*filter(None, (self._say(epoch, parts) for epoch, parts in over if parts))]

    def _say(self, epoch: float, parts: Sequence[Evaluated]) -> str:
        """Return the means of an epoch, and whether these are only those of some workers."""
        named = (("accuracy", "accuracy"), ("centre_accuracy", "centre"), ("loss", "loss"))
        values = [(title, mean_of(parts, field)) for field, title in named]
        said = [f"{title} {value:.4g}" for title, value in values if value is not None]
        if not said:
            return ""
        return f"epoch {epoch:g}{self._who(parts)}: " + ", ".join(filter(None, [*said, self._traffic()]))

    def _who(self, parts: Sequence[Evaluated]) -> str:
        """Return which workers have reported, if not all have."""
        if len(parts) >= self._workers:
            return ""
        count, groups = f"{len(parts)} of {self._workers} workers", {part.group for part in parts}
        return f", group {groups.pop()} ({count})" if self._groups > 1 and len(groups) == 1 else f", {count}"

    def _traffic(self) -> str:
        """Return what the groups have sent so far; empty without events."""
        if self._folder is None:
            return ""
        from hybridps.report import Following, in_words

        self._following = self._following or Following(Path(self._folder), self._began, self._launch)
        traffic = in_words(self._following.figures())
        return f"so far {traffic}" if traffic else ""
