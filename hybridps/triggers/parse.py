"""Make a trigger from text."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from hybridps.errors import ConfigError, did_you_mean
from hybridps.triggers.adapt import Adapt
from hybridps.triggers.budget import Budget, parse_rate
from hybridps.triggers.change import Change
from hybridps.triggers.dynamic import Dynamic
from hybridps.triggers.eventgrad import EventGrad
from hybridps.triggers.every import Every

AnyTrigger = Every | Change | EventGrad | Dynamic | Budget | Adapt

TRIGGERS: dict[str, type[AnyTrigger]] = {
    "always": Every,
    "every": Every,
    "change": Change,
    "eventgrad": EventGrad,
    "dynamic": Dynamic,
    "budget": Budget,
    "adapt": Adapt,
}
FORMS = "always, every:TAU, change:THETA, eventgrad[:HORIZON], dynamic:DELTA, budget:RATE or adapt:THETA"
_ARGUMENT = {Every: "tau", Change: "theta", EventGrad: "horizon", Dynamic: "delta", Adapt: "theta"}
_OPTIONAL = (EventGrad,)


def parse(text: str) -> AnyTrigger:
    """Return the trigger that a text such as `every:10`, `change:0.05,silence=100` or `budget:10MB/s` describes.

    Options follow after commas: `silence=STEPS`, `check=STEPS`, `chunk=BYTES` (of `change`), `first=STEPS` (of
    `eventgrad`), `epoch=STEPS` (of `budget`) and `share=PART` (of `adapt`). `inf` is allowed where a threshold can be
    infinite. Raises ConfigError, with the nearest name, for an unknown trigger or option.
    """
    head, *options = (part.strip() for part in text.split(","))
    name, _, argument = head.partition(":")
    kind = TRIGGERS.get(name)
    if kind is None:
        _refuse(text, f"{name!r} is unknown{did_you_mean(name, [*TRIGGERS])}", FORMS)
    given = _options(text, name, kind, options)
    if kind is Budget:
        epoch = msgspec.convert(given.pop("epoch"), int, strict=False) if "epoch" in given else None
        given["nbytes"], given["per"] = parse_rate(argument, epoch)
    elif name == "always":
        if argument:
            _refuse(text, f"always takes no {argument!r}", "always, or every:TAU")
    elif argument:
        given[_ARGUMENT[kind]] = None if argument == "inf" and kind in (Change, Dynamic) else argument
    elif kind not in _OPTIONAL:
        _refuse(text, f"{name} lacks its {_ARGUMENT[kind]}", FORMS)
    try:
        return msgspec.convert({"type": kind.__struct_config__.tag, **given}, kind, strict=False)
    except msgspec.ValidationError as error:
        _refuse(text, str(error).replace("Expected", "expected", 1), FORMS)


def _options(text: str, name: str, kind: type[AnyTrigger], options: list[str]) -> dict[str, Any]:
    """Return the options by name. Raises ConfigError for one that the trigger does not have."""
    usual = {_ARGUMENT.get(kind), "nbytes", "per"}
    known = [field for field in kind.__struct_fields__ if field not in usual] + ["epoch"] * (kind is Budget)
    given = {}
    for option in options:
        field, equals, value = option.partition("=")
        if field not in known or not equals:
            allowed = f"its options are {', '.join(f'{each}=...' for each in known)}" if known else "it has no options"
            _refuse(text, f"{name} has no option {option!r}{did_you_mean(field, known)}", allowed)
        if field == "epoch" and not (value.isdecimal() and int(value)):
            _refuse(text, f"epoch={value} is not a number of steps", "epoch=STEPS")
        given[field] = value
    return given


def _refuse(text: str, why: str, fix: str) -> NoReturn:
    end = "" if why.endswith("?") else "."
    raise ConfigError(f"the trigger {text!r} cannot be used: {why}{end} Use {fix}")
