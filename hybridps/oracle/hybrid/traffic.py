"""Forecasts the traffic of other thresholds on the change, from the changes that a run has recorded.

The age a is the number of steps since the last exchange. Between two exchanges the change grows as c = speed a^power:
the power is 1 if the weights move straight on, 1/2 if they walk at random, and less if they stay near a place. The
power is fitted to the whole run; the speed is c / a^power at each look. A replay with another threshold adds up
speed^(1/power), by which c^(1/power) grows in a step.

This model is our own. At the recorded threshold it gives the recorded exchanges. It assumes that the whole model is
sent, even if the run decided on parts of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from hybridps.errors import OracleError
from hybridps.events import Changed, Registered

GOSSIPING = ("gossip", "gosgd", "sgp")
"""Algorithms for which recorded changes do not tell the effect of another threshold."""

USUAL_POWER = 0.5
"""The power if it cannot be fitted, because there are no two looks between exchanges."""


class Forecast(msgspec.Struct, frozen=True):
    """The traffic of all groups with one threshold. `saved`: the part that it saves of exchanges in every step."""

    threshold: float | None
    silence: int | None
    messages: int
    nbytes: int
    saved: float


class Traffic(msgspec.Struct, frozen=True):
    """What a run has recorded, and the forecasts. `power`: the exponent with which the change grows with its age."""

    looks: int
    recorded_messages: int
    recorded_bytes: int
    power: float
    forecasts: list[Forecast]


Looks = Sequence[Changed]
"""The looks at one table of one group, in the order of steps."""


def read_changes(folder: Path) -> list[Looks]:
    """Read the looks at each table of each group. Raises OracleError if the run has recorded none."""
    found: list[Looks] = []
    for path in sorted(folder.glob("hybridps-*.jsonl")):
        tables: dict[str, list[Changed]] = {}
        for line in path.read_bytes().splitlines():
            _refuse_gossip(line, folder)
            try:
                event = msgspec.json.decode(line, type=Changed)
            except msgspec.DecodeError:  # another event, or half a line of a process that was killed
                continue
            looks = tables.setdefault(event.table, [])
            if looks and event.step <= looks[-1].step:  # the process was started again
                looks = tables[event.table] = []
            looks.append(event)
        found += tables.values()
    if not found:
        raise OracleError(
            f"{folder} has no changes of weights: run with --run, and a trigger that looks at the weights, such as "
            "--trigger change:inf,silence=10"
        )
    return found


def _refuse_gossip(line: bytes, folder: Path) -> None:
    """Raise OracleError if this line of a run says that its groups gossip."""
    try:
        registered = msgspec.json.decode(line, type=Registered)
    except msgspec.DecodeError:
        return
    if registered.rule in GOSSIPING:
        raise OracleError(
            f"{folder} is a run of {registered.rule}, in which partners move the weights between two exchanges of "
            "a group: forecast from a run with elastic, easgd, local or diloco"
        )


def forecast(runs: Sequence[Looks], thresholds: Iterable[float | None], silence: int | None) -> Traffic:
    """Forecast the traffic with each threshold (None: infinite) and this bound on silence."""
    power = fit_power(runs)
    every = sum(look.nbytes for looks in runs for look in looks)
    found = []
    for threshold in thresholds:
        sent = [look.nbytes for looks in runs for look in replay(looks, power, threshold, silence)]
        saved = 1 - sum(sent) / every if every else 0.0
        found.append(Forecast(threshold, silence, len(sent), sum(sent), saved))
    recorded = [look.sent for looks in runs for look in looks if look.sent]
    return Traffic(sum(map(len, runs)), len(recorded), sum(recorded), power, found)


def replay(looks: Looks, power: float, threshold: float | None, silence: int | None) -> list[Changed]:
    """Return the looks at which the table would be exchanged."""
    sent, last_look, last_sent, last_recorded, grown = list[Changed](), 0, 0, 0, 0.0
    for look in looks:
        speed = look.change / (look.step - last_recorded) ** power
        grown += (look.step - last_look) * speed ** (1 / power)
        # If the last exchange is the same as in the run, the recorded change itself decides, so that rounding does not.
        change = look.change if last_sent == last_recorded else grown**power
        if (threshold is not None and change >= threshold) or (
            silence is not None and look.step - last_sent >= silence
        ):
            sent.append(look)
            last_sent, grown = look.step, 0.0
        last_look = look.step
        if look.sent:
            last_recorded = look.step
    return sent


def fit_power(runs: Sequence[Looks]) -> float:
    """Return the slope of log change over log age, within the intervals between exchanges; between 0.1 and 1.2."""
    up = across = 0.0
    for looks in runs:
        last, xs, ys = 0, list[float](), list[float]()
        for look in looks:
            if look.change > 0:
                xs.append(np.log(look.step - last))
                ys.append(np.log(look.change))
            if look.sent or look is looks[-1]:
                if len(xs) > 1:
                    x, y = np.array(xs) - np.mean(xs), np.array(ys) - np.mean(ys)
                    up, across = up + float(x @ y), across + float(x @ x)
                last, xs, ys = look.step, [], []
    return float(np.clip(up / across, 0.1, 1.2)) if across else USUAL_POWER
