"""Records the steps of a worker."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hybridps.config import Settings
from hybridps.errors import ConfigError
from hybridps.memory import Layout
from hybridps.tracing.files import TraceFile
from hybridps.tracing.loading import take_loads
from hybridps.tracing.records import Keys, Kind, Process, Span, Step

KEYS_AT_A_TIME = 1000
"""The largest number of keys that one line describes."""

MOST_ARRIVALS = 1000
"""The number of gradients of a step whose times are written one by one. Of any others, only the last time is written,
which limits the cost."""


MOST_SPANS = 4096
"""The largest number of spans of a step that are written: the last ones."""


class Recorder:
    """The trace of a worker's steps, or nothing if there is no file. Used by the communication thread.

    It takes times in seconds of the monotonic clock. It holds one step, and writes one line for it.
    """

    def __init__(self, file: TraceFile | None = None, process: Process | None = None) -> None:
        self.process = process
        """This worker's line; None if nothing is recorded."""
        self.on_step: Callable[[], None] = lambda: None
        """Called after each step."""
        self._file = file
        self._base = process.base if process is not None else 0.0
        self._keys: dict[tuple[str, str], int] = {}
        self._models = 0
        self._open: tuple[int, int, float] | None = None
        """The step's number, its model, and when it began."""
        self._has_begun = False
        self._arrived: dict[int, float] = {}
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)

    @staticmethod
    def of(settings: Settings, worker: int, group: int, group_rank: int) -> Recorder:
        """Return the recorder of a worker, as the settings say."""
        if not settings.trace or settings.run_folder is None:
            return Recorder()
        file, base = TraceFile(settings.run_folder, str(worker), settings.trace_bytes), time.monotonic()
        process = Process(worker, group, group_rank, base, time.time(), clock_name(), settings.launch, settings.life)
        file.write(process, stays=True)
        return Recorder(file, process)

    def add_model(self) -> int:
        """Return the number of another model."""
        self._models += 1
        return self._models - 1

    def add_keys(self, table: str, layout: Layout, vectors: int) -> None:
        """Write the keys of a table, whose gradients have this many `vectors`."""
        if self._file is None:
            return
        for start in range(0, len(layout.slots), KEYS_AT_A_TIME):
            slots, first = layout.slots[start : start + KEYS_AT_A_TIME], len(self._keys)
            self._keys |= {(table, slot.key): first + number for number, slot in enumerate(slots)}
            sizes = [slot.size for slot in slots]
            nbytes = [size * layout.itemsize * vectors for size in sizes]
            self._file.write(Keys(table, first, [slot.key for slot in slots], sizes, nbytes), stays=True)

    def begin(self, number: int, model: int) -> None:
        """Begin a step of a model, and write the previous step if it is still open.

        Waits since the end of the previous step belong to this one. Those before the first step are left out.
        """
        if self._file is not None:
            now = time.monotonic()
            if not self._has_begun:
                self._has_begun = True
                self._spans.clear()
            if self._open is not None:
                self._write(max([self._open[2], *self._arrived.values()]))
                self.on_step()
            self._open = number, model, now

    def arrived(self, model: int, table: str, key: str, when: float) -> None:
        """Note when the gradient of a key had been computed, unless a step of another model has begun since."""
        if self._file is not None and (self._open is None or self._open[1] == model):
            number = self._keys.get((table, key), -1) if len(self._arrived) < MOST_ARRIVALS else -1
            self._arrived[number] = max(when, self._arrived.get(number, when))

    def span(self, kind: Kind, began: float, table: str = "", key: str = "", nbytes: int = 0) -> None:
        """Note what the communication thread has done from `began` until now."""
        if self._file is not None:
            number = self._keys.get((table, key), -1)
            self._spans.append(
                Span(kind, self.microseconds(began), self.microseconds(time.monotonic()), number, nbytes)
            )

    def end(self, number: int, model: int, program_seconds: float = 0.0, computes_before: bool = False) -> None:
        """End a step, which now has all of its sums, and write it, with fields of its line.

        Nothing happens if it is not open, because a step of another model has begun since.
        """
        if self._open is not None and self._open[:2] == (number, model):
            self._write(time.monotonic(), program_seconds, computes_before)
            self.on_step()

    def microseconds(self, seconds: float) -> int:
        """Return a time of the monotonic clock as lines have it."""
        return round(1e6 * (seconds - self._base))

    def close(self) -> None:
        """Write the step that is open, and close the file. Call this after the communication thread has ended."""
        if self._file is not None:
            if self._open is not None:
                self._write(max([self._open[2], *self._arrived.values()]))
            self._file.close()

    def _write(self, ended: float, program_seconds: float = 0.0, computes_before: bool = False) -> None:
        if self._open is None or self._file is None:
            return
        number, model, began = self._open
        if not self._arrived and all(span.kind == "vote" for span in self._spans):
            return  # of a model that did nothing in this step
        arrived = [(key, self.microseconds(when)) for key, when in self._arrived.items()]
        at_end = max([self.microseconds(ended), *(span.ended for span in self._spans)])
        loads = take_loads(max(self._arrived.values(), default=ended))  # later ones belong to the next step
        loaded = [(self.microseconds(start), self.microseconds(stop)) for start, stop in loads]
        times, spans, program = (self.microseconds(began), at_end), list(self._spans), round(1e6 * program_seconds)
        self._file.write(Step(number, model, *times, arrived, spans, loaded, program, computes_before))
        self._open, self._arrived = None, {}
        self._spans.clear()


def check_trace(settings: Settings) -> None:
    """Raise ConfigError if there is to be a trace, but no folder to write it to."""
    if settings.trace and settings.run_folder is None:
        raise ConfigError(
            "HYBRIDPS_TRACE needs a folder to write to: set HYBRIDPS_RUN_FOLDER, or give `hybridps run --run FOLDER`"
        )


def clock_name() -> str:
    """Return the host, with its last boot if that is known."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot}".strip()
