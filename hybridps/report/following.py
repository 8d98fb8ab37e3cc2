"""What a run has sent so far, read from event files that are still being written."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hybridps.report.reading import Known
from hybridps.report.traffic import GroupTraffic, figures


class Following:
    """Follows the event files of a run. Each line is read once.

    `launch`: the id of the launch. Ranks of other launches do not count; without ids, ranks that started before `since`
    do not count.
    """

    def __init__(self, folder: Path, since: float, launch: str | None = None) -> None:
        self._folder = folder
        self._since = since
        self._launch = launch
        self._read: dict[Path, int] = {}
        """The bytes that were read of each file."""
        self._traffic: dict[Path, GroupTraffic] = {}

    def figures(self) -> dict[str, Any]:
        """Return what all groups have sent so far, as `hybridps.report.figures` does."""
        for path in self._folder.glob("hybridps-*.jsonl"):
            if path.stem.removeprefix("hybridps-").isdigit():
                with suppress(OSError):
                    self._follow(path)
        return figures([traffic for traffic in self._traffic.values() if traffic.is_leader and self._is_of_it(traffic)])

    def _is_of_it(self, traffic: GroupTraffic) -> bool:
        has_ids = self._launch and traffic.launch
        return traffic.launch == self._launch if has_ids else traffic.began >= self._since

    def _follow(self, path: Path) -> None:
        traffic = self._traffic.setdefault(path, GroupTraffic())
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            whole = file.read().rpartition(b"\n")[0]
        self._read[path] = self._read.get(path, 0) + len(whole) + bool(whole)
        for text in whole.splitlines():
            with suppress(msgspec.DecodeError):
                traffic.add(msgspec.json.decode(text, type=Known), 0.0)
