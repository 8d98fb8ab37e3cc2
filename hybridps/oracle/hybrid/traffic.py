"""The traffic of other thresholds on the change, forecast from the changes that a run has recorded.

Between two exchanges the change grows with its age a (steps since the last exchange) as c = speed a^power: power 1 if
the weights go straight on, 1/2 if they walk at random, less if they stay near a place. The power is fitted to the whole
run, and the speed is c / a^power at each look. A replay with another threshold adds up speed^(1/power), which is what
c^(1/power) grows by in a step. Our model; at the recorded threshold it gives the recorded exchanges. The whole model is
taken to be sent, also where the run decided on its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from hybridps.errors import OracleError
from hybridps.events import Changed, Registered

GOSSIPING = ("gossip", "gosgd", "sgp")
"""Algorithms whose changes do not say what another threshold would have made of them."""

USUAL_POWER = 0.5
"""Where nothing can be fitted: no two looks between exchanges."""


class Forecast(msgspec.Struct, frozen=True):
    """The traffic of all groups with one threshold. `saved`: part of what an exchange in every step would send."""

    threshold: float | None
    silence: int | None
    messages: int
    nbytes: int
    saved: float


class Traffic(msgspec.Struct, frozen=True):
    """What a run has recorded, and the forecasts. `power`: by which the change grows with its age."""

    looks: int
    recorded_messages: int
    recorded_bytes: int
    power: float
    forecasts: list[Forecast]


Looks = Sequence[Changed]
"""Of one table of one group, in the order of steps."""


def read_changes(folder: Path) -> list[Looks]:
    """The looks of each table and group. Raises OracleError if the run has recorded none."""
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
    """The traffic with each threshold (None: infinite), and this bound on silence."""
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
    """The looks at which the table would be exchanged."""
    sent, last_look, last_sent, last_recorded, grown = list[Changed](), 0, 0, 0, 0.0
    for look in looks:
        speed = look.change / (look.step - last_recorded) ** power
        grown += (look.step - last_look) * speed ** (1 / power)
        # The recorded change itself where the last exchange is the same: no rounding decides.
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
    """The slope of log change over log age, within the intervals between exchanges; between 0.1 and 1.2."""
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
