"""Commands whose function takes the options as one record."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from hybridps.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


def _words(name: str, hint: Any) -> list[str]:
    """Return the long names of an option on the command line."""
    found: list[str] = []
    for each in getattr(hint, "__metadata__", ()):
        declared = each.default, *(each.param_decls or ())  # Typer calls the first name a default
        found += [word for word in declared if isinstance(word, str) and word.startswith("--")]
    return found or [f"--{name.replace('_', '-')}"]


def _is_folder(hint: Any) -> bool:
    return any(getattr(each, "metavar", None) == "FOLDER" for each in getattr(hint, "__metadata__", ()))


def takes(record: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Return a decorator: it makes a Typer command of a function that takes one `record`, a dataclass of options."""

    def decorate(command: Callable[[Options], None]) -> Callable[..., None]:
        hints = get_type_hints(record, include_extras=True)
        words = {field.name: _words(field.name, hints[field.name]) for field in dataclasses.fields(record)}
        options = {word for each in words.values() for word in each}

        def from_words(**given: Any) -> None:
            for name, value in given.items():
                if isinstance(value, (str, Path)) and str(value) in options:
                    raise ConfigError(f"{words[name][0]} needs a value, and the option {value} follows it")
                if value == "" and _is_folder(hints[name]):  # it would be the current folder
                    raise ConfigError(f"{words[name][0]} needs a value, and the one given is empty")
            command(record(**given))

        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(record)
        ]
        from_words.__name__, from_words.__doc__ = command.__name__, command.__doc__
        from_words.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        from_words.__annotations__ = hints
        return from_words

    return decorate
