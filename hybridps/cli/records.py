"""Commands whose function takes the options as one record."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


def takes(record: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Return a decorator: it makes a Typer command of a function that takes one `record`, a dataclass of options."""

    def decorate(command: Callable[[Options], None]) -> Callable[..., None]:
        hints = get_type_hints(record, include_extras=True)

        def from_words(**given: Any) -> None:
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
