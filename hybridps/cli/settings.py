"""`hybridps settings`: every setting, with its value here, its default and its effect."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from hybridps.config import PREFIX, SECRETS, Settings, load_settings, text_of
from hybridps.errors import ConfigError

_WIDTH = 100


def print_settings(words: list[str]) -> None:
    """Print the settings whose names or effects contain all of the words. Raises ConfigError if there is none."""
    found = [*_shown([word.lower() for word in words])]
    if not found:
        raise ConfigError(f"no setting has {' and '.join(map(repr, words))} in its name or effect: try a shorter word")
    print("\n\n".join(found))


def _shown(words: list[str]) -> Iterator[str]:
    """Yield a setting as text: how it is set here, or its default, and its effect."""
    values, defaults = load_settings(), Settings()
    for name, effect in attribute_texts(Settings).items():
        if not all(word in f"{PREFIX}{name} {effect}".lower() for word in words):
            continue
        value, default = getattr(values, name), getattr(defaults, name)
        variable = f"{PREFIX}{name.upper()}"
        usual = "not set" if default in (None, ()) else text_of(default)
        shown = "(secret)" if variable in SECRETS else text_of(value) if value not in (None, ()) else "empty"
        line = f"{variable}: {usual}" if value == default else f"{variable}={shown} (default: {usual})"
        yield f"{line}\n{textwrap.fill(effect, _WIDTH, initial_indent='    ', subsequent_indent='    ')}"


def attribute_texts(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a class, on one line."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
