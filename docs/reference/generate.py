"""The reference pages that are made from the code: commands, settings, algorithms, metrics and events.

`python docs/reference/generate.py` writes them into the folder of this file. A test compares them with the code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo
from units import unit

from hybridps import config, events
from hybridps.algorithms import ALGORITHMS, KNOWN
from hybridps.cli.app import app
from hybridps.cli.settings import attribute_texts
from hybridps.config import PREFIX, Settings
from hybridps.ps.server.metrics import METRICS
from hybridps.watch.metrics import LABELS, MODEL_METRICS
from hybridps.watch.metrics import METRICS as OF_WORKERS

Page = Iterator[str]

WIDE = "---\nhide: [toc]\n---\n\n"
"""Begins a page that is one table, for which the theme leaves out the table of contents."""


def is_quantity(hint: Any) -> bool:
    """Whether a type holds numbers; a bool is none."""
    if get_origin(hint) is Annotated:
        return is_quantity(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType, tuple, list):
        return any(is_quantity(part) for part in get_args(hint))
    return hint in (int, float)


def words_of(hint: Any) -> str:
    """A type in words.

    >>> words_of(config.Seconds | None)
    'number > 0 and <= 1000000'
    >>> words_of(tuple[str, ...])
    'list of texts, with commas'
    """
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part not in (type(None), Ellipsis)]
    if origin is Literal:
        return "one of " + ", ".join(f"`{part}`" for part in parts)
    if origin is Annotated:
        return f"{words_of(parts[0])}{_bounds(parts[1])}"
    if origin is tuple:
        kind, _, bounds = words_of(parts[0]).partition(" ")
        return f"list of {kind}s{bounds and ' ' + bounds}, with commas"
    if origin in (Union, UnionType):
        return " or ".join(map(words_of, parts))
    if origin is list:
        return f"{words_of(parts[0])}; may be repeated"
    if origin is dict:
        return "object"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(f"`{part.value}`" for part in hint)
    return {int: "integer", float: "number", str: "text", bool: "`true` or `false`", Path: "path"}[hint]


def settings_page() -> Page:
    """Every setting: its type, default, unit and effect."""
    yield f"{WIDE}# Settings\n"
    yield "A setting is a field of `hybridps.config.Settings`. The environment variable `HYBRIDPS_<NAME>` sets it, and"
    yield "so does `hybridps run --set name=value`. Unknown names, and values that cannot be used, are refused before"
    yield "anything starts. An option of a command takes precedence over the environment, and `--set` over both.\n"
    yield "| setting | type | default | unit | effect |\n|---|---|---|---|---|"
    hints, texts, defaults = get_type_hints(Settings, include_extras=True), attribute_texts(Settings), Settings()
    for name, hint in hints.items():
        default = getattr(defaults, name)
        shown = f"`{config.text_of(default)}`" if default not in (None, ()) else ""
        what = unit(name) if is_quantity(hint) else ""
        yield _row(f"`{PREFIX}{name.upper()}`", words_of(hint), shown, what, texts[name])


def commands_page() -> Page:
    """Every command and option."""
    yield "# Commands\n"
    yield "`hybridps COMMAND --help` prints the same.\n"
    for name, command in commands(app):
        yield f"## `{name}`\n\n{_text_of(inspect.getdoc(command))}\n"
        options = options_of(command)
        yield f"```text\n{' '.join([name, '[OPTIONS]', *(each.shown for each in options if each.is_argument)])}\n```\n"
        if options:
            yield "| argument or option | type | default | what it does |\n|---|---|---|---|"
        for each in options:
            kind = "flag" if words_of(each.hint) == words_of(bool) else words_of(each.hint)
            quantity = f" ({unit(each.name)})" if is_quantity(each.hint) else ""
            yield _row(f"`{each.shown}`", kind + quantity, each.default, _text_of(each.text))
        yield ""


def algorithms_page() -> Page:
    """Every algorithm, as its file describes it."""
    yield "# Algorithms\n"
    yield "Each is a name for `--algorithm`, and a KVStore type `dist_hybridps_<name>`. [Algorithms](../algorithms.md)"
    yield "compares them. In the equations w are the weights of a group, g a gradient and eta the learning rate.\n"
    for name, definition in KNOWN.items():
        also = ", ".join(f"`{other}`" for other, short in ALGORITHMS.items() if short == name and other != name)
        first, _, text = (inspect.getdoc(sys.modules[definition.make_row.__module__]) or "").partition("\n")
        yield f"## `{name}`\n\n{first}\n"
        if also:
            yield f"Other names: {also}.\n"
        yield f"{text.strip()}\n"


def metrics_page() -> Page:
    """Every metric of servers and workers."""
    yield f"{WIDE}# Metrics\n"
    yield "A server that was started with `--metrics-port` exposes these metrics in the form of Prometheus"
    yield "([The servers](../parameter-server.md#monitoring-a-server)). `hybridps top` shows them. The usual metrics of"
    yield "a process, such as `process_cpu_seconds_total`, are there too.\n"
    yield "| metric | kind | labels | unit | what it is |\n|---|---|---|---|---|"
    for (family, labels), metrics in METRICS.items():
        kind = family.__name__.removesuffix("MetricFamily").lower()
        for name, (_, text) in metrics.items():
            shown = f"`hybridps_{name}{'_total' if kind == 'counter' else ''}`"
            yield _row(shown, kind, ", ".join(f"`{label}`" for label in labels), unit(name), text)

    yield "\n## Of workers\n"
    yield "The launcher, or without one the first worker, exposes these with `--worker-metrics-port`"
    shown_labels = ", ".join(f"`{label}`" for label in LABELS)
    yield f"([Watch a run](../watching.md#prometheus)). Their labels are {shown_labels}.\n"
    yield "| metric | kind | unit | what it is |\n|---|---|---|---|"
    for family, of_workers in OF_WORKERS.items():
        kind = family.__name__.removesuffix("MetricFamily").lower()
        for name, (_, text) in of_workers.items():
            yield _row(f"`hybridps_{name}{'_total' if kind == 'counter' else ''}`", kind, unit(name), text)
    for name, (_, text) in MODEL_METRICS.items():
        yield _row(f"`hybridps_{name}`", "gauge", unit(name), text)


def events_page() -> Page:
    """Every event of a run folder."""
    yield "# Events\n"
    yield "With `--run FOLDER` each rank writes its events to `hybridps-<rank>.jsonl`, and the launcher to"
    yield "`hybridps-launcher.jsonl`. Each line is a JSON object: `event` is the name of the event, `rank` says who"
    yield "wrote it, `seconds` is the time since the log began, and the rest are the fields below. A program can read"
    yield "them with the classes of `hybridps.events`. [Files](files.md) lists the other files of a run.\n"
    for event in events.Event.__subclasses__():
        yield f"## {event.__name__}\n\n{inspect.getdoc(event)}\n"
        yield "| field | type | unit |\n|---|---|---|"
        for name, hint in get_type_hints(event, include_extras=True).items():
            if name in event.__struct_fields__:
                yield _row(f"`{name}`", words_of(hint), unit(name) if is_quantity(hint) else "")
        yield ""


PAGES: dict[str, Callable[[], Page]] = {
    "commands": commands_page,
    "settings": settings_page,
    "algorithms": algorithms_page,
    "metrics": metrics_page,
    "events": events_page,
}
"""By the name of the page in docs/reference."""


def generate(name: str) -> str:
    """Return the Markdown of a page."""
    return "\n".join(PAGES[name]()) + "\n"


class Option(NamedTuple):
    """An option or argument of a command."""

    name: str
    shown: str
    hint: Any
    default: str
    text: str
    is_argument: bool


def commands(group: typer.Typer, name: str = "hybridps") -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the commands that users see, with the words that start them."""
    for command in group.registered_commands:
        if command.callback is not None and not command.hidden:
            yield f"{name} {command.name or command.callback.__name__}", command.callback
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from commands(below.typer_instance, f"{name} {below.name}")


def options_of(command: Callable[..., Any]) -> list[Option]:
    """The options of a command that users see."""
    hints, found = get_type_hints(command, include_extras=True), []
    for name, parameter in inspect.signature(command).parameters.items():
        if get_origin(hints[name]) is not Annotated:
            continue
        hint, info = get_args(hints[name])[:2]
        if info.hidden:
            continue
        is_argument = isinstance(info, ArgumentInfo)
        first = [info.default] if isinstance(info.default, str) else []  # typer takes the first name for the default
        names = [*first, *(info.param_decls or ())] or [f"--{name.replace('_', '-')}"]
        metavar = info.metavar or (name.upper() if is_argument else "")
        shown = metavar if is_argument else " ".join(filter(None, [", ".join(names), metavar]))
        found.append(Option(name, shown, hint, _default(parameter.default), info.help, is_argument))
    return found


def _bounds(meta: Any) -> str:
    signs = (">", meta.gt), (">=", meta.ge), ("<", meta.lt), ("<=", meta.le)
    bounds = " and ".join(f"{sign} {bound}" for sign, bound in signs if bound is not None)
    multiple = f", a multiple of {meta.multiple_of}" if meta.multiple_of else ""
    pattern = ": letters, digits, `_`, `.` and `-`, at most 64" if meta.pattern else ""
    return f"{' ' if bounds else ''}{bounds}{multiple}{pattern}"


def _default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default is None or default is False:
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _text_of(text: str | None) -> str:
    return " ".join((text or "").split())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    for page in PAGES:
        Path(__file__).with_name(f"{page}.md").write_text(generate(page))
