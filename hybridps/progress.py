"""What a training process tells its launcher, by lines on standard output.

A script reports its progress by a line that `report_progress` prints:

    hybridps: epoch=3 accuracy=0.712 loss=0.83

`hybridps run` reads the lines of its workers, and writes an `Evaluated` event for each to the run folder. A job whose
groups train in step also tells how a group that dies is restarted; the launcher does not show that line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import msgspec

from hybridps.config import load_settings
from hybridps.errors import ConfigError
from hybridps.events import Configured, Evaluated, EventLog

SAYS = "hybridps: "
_BEGINS = f"{SAYS}epoch="
_RESTARTS = f"{SAYS}restarts="
_FIELDS = tuple(name for name in Evaluated.__struct_fields__ if name != "group")

TOGETHER, ALONE = "together", "alone"
"""All groups are restarted, as nobody gives a restarted group the weights; or only the one that died, as the script
lets the others hand them over."""

listeners: list[Callable[[Evaluated], None]] = []
"""Called with each event that this process reports."""

_logs: dict[int, EventLog] = {}
"""The logs of this process, by worker; used where no launcher reads the lines."""


def report_progress(
    epoch: float,
    accuracy: float | None = None,
    loss: float | None = None,
    *,
    centre_accuracy: float | None = None,
    images: int | None = None,
    worker: int | None = None,
    step: int | None = None,
) -> None:
    """Report how good the model is after this many epochs. `epoch` 0 reports that training begins.

    `accuracy`, and `centre_accuracy` of the centre of Elastic SGD, are shares from 0 to 1. If several workers report,
    each gives its number as `worker`; the mean counts, weighted by `images`, the number of images that each has
    evaluated. `step`: the number of steps done, for groups that are restarted (`hybridps.resume`). A value that is not
    finite is left out. Prints one line, which `hybridps run` reads. Without that launcher, writes the event to the run
    folder (`HYBRIDPS_RUN_FOLDER`), if there is one. Raises ConfigError for an impossible value.
    """
    values = (epoch, accuracy, loss, centre_accuracy, images, worker, step)
    words = [f"{name}={value}" for name, value in zip(_FIELDS, values, strict=True) if value is not None]
    line = SAYS + " ".join(words)
    event = parse_progress(line)
    print(line, flush=True)
    if event is not None:
        for listen in listeners:
            listen(event)
    settings = load_settings()
    if event is None or settings.group_index is not None or settings.run_folder is None:
        return
    number = worker or 0
    if number not in _logs:
        _logs[number] = EventLog(settings.run_folder, f"progress-{number}")
        _logs[number].emit(Configured(time.time(), {}))
    _logs[number].emit(event)


def parse_progress(line: str) -> Evaluated | None:
    """Return what a line of a script's output reports, or None. Raises ConfigError for an impossible value.

    >>> found = parse_progress("hybridps: epoch=3 accuracy=0.712 loss=nan step=900")
    >>> found.epoch, found.accuracy, found.loss, found.step
    (3.0, 0.712, None, 900)
    >>> parse_progress("epoch 3: 71.2 %")
    """
    if not line.startswith(_BEGINS):
        return None
    values = {}
    for word in line.removeprefix(SAYS).split():
        name, equals, text = word.partition("=")
        if not equals or name not in _FIELDS:
            raise ConfigError(f"{word!r} in {line!r} has no meaning: give {'=, '.join(_FIELDS)}=")
        values[name] = text
    try:
        known = {name: text for name, text in values.items() if math.isfinite(float(text))}
        return msgspec.convert(known, Evaluated, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        reason = str(error).replace("`$.", "").replace("`", "")
        raise ConfigError(f"{line!r} cannot be used: {reason}; accuracies are shares from 0 to 1") from None


def mean_of(events: Iterable[Evaluated], field: str) -> float | None:
    """Return the mean of a field over events of one epoch, weighted by images if all have them; None without values.

    >>> mean_of([Evaluated(1, accuracy=0.5, images=10), Evaluated(1, accuracy=1.0, images=30)], "accuracy")
    0.875
    """
    given = [(value, event.images) for event in events if (value := getattr(event, field)) is not None]
    if not given:
        return None
    weights = [images or 0 for _, images in given]
    if not all(weights):
        weights = [1] * len(given)
    return sum(value * weight for (value, _), weight in zip(given, weights, strict=True)) / sum(weights)


def restarts_line(how: str) -> str:
    """Return the line.

    >>> parse_restarts(restarts_line(ALONE)), parse_restarts("hybridps: epoch=1")
    ('alone', None)
    """
    return f"{_RESTARTS}{how}"


def parse_restarts(line: str) -> str | None:
    """Return what a line of a worker says; None for any other line."""
    how = line.removeprefix(_RESTARTS).strip()
    return how if line.startswith(_RESTARTS) and how in (TOGETHER, ALONE) else None
