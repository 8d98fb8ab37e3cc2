"""The signals that end a launch."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Collects the signals that ask the launcher to end, inside its `with` block. True once there is one."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        """The numbers of the signals, in order of arrival."""
        self._before: dict[int, object] = {}

    def __bool__(self) -> bool:
        return bool(self.heard)

    @property
    def name(self) -> str | None:
        """The name of the first one, such as `SIGINT`."""
        return signal.Signals(self.heard[0]).name if self.heard else None

    @property
    def are_several(self) -> bool:
        """Whether the user has asked more than once."""
        return len(self.heard) > 1

    def __enter__(self) -> Signals:
        by_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup asked the job to survive the terminal
        for number in _SIGNALS:
            if not (by_nohup and number == signal.SIGHUP):
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(number)
