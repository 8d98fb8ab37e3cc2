"""Turns the user's command into the command that each rank runs. Pure."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from hybridps.errors import ConfigError

_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*")
_BARE = ("python", "python3")
_OWN = ("hybridps", "mpi4py")


def wrap(command: Sequence[str], python: str = sys.executable) -> tuple[str, ...]:
    """The command with hybridps' runner before the script, so that an unchanged script knows the KVStore types.

    >>> wrap(["python", "-u", "train.py", "--epochs", "3"], python="/venv/bin/python")
    ('/venv/bin/python', '-u', '-m', 'hybridps', 'train.py', '--epochs', '3')
    >>> wrap(["train.py"], python="/venv/bin/python")
    ('/venv/bin/python', '-m', 'hybridps', 'train.py')
    >>> wrap(["python3.11", "-m", "package.train"], python="/venv/bin/python")
    ('python3.11', '-m', 'hybridps', '-m', 'package.train')

    `python` and `python3` mean the Python that hybridps is installed in; any other interpreter is taken
    as it is. Commands that already run `-m hybridps` or `-m mpi4py`, Python code given with `-c`, scripts
    whose names do not end in `.py`, and programs other than Python are left alone.
    """
    first, rest = command[0], list(command[1:])
    if first.endswith(".py"):
        return (python, "-m", "hybridps", first, *rest)
    if not is_python(first):
        return tuple(command)
    interpreter = python if first in _BARE else first
    position = _program(rest)
    if position is None or _is_own(rest, position):
        return (interpreter, *rest)
    if rest[position].startswith("-"):
        options, module = _split_module(rest[position])
        return (interpreter, *rest[:position], *options, "-m", "hybridps", "-m", *module, *rest[position + 1 :])
    if not rest[position].endswith(".py"):
        return (interpreter, *rest)
    return (interpreter, *rest[:position], "-m", "hybridps", *rest[position:])


def is_python(program: str) -> bool:
    """Whether the name of a program is that of a Python interpreter."""
    return _INTERPRETER.fullmatch(os.path.basename(program)) is not None


def check(command: Sequence[str]) -> None:
    """Raise ConfigError if the program or the script of a user's command does not exist here."""
    if not command:
        raise ConfigError("no command was given: hybridps run [OPTIONS] -- python train.py")
    first, rest = command[0], list(command[1:])
    script = first if first.endswith(".py") else None
    if script is None and first not in _BARE and shutil.which(first) is None:
        raise ConfigError(f"there is no program {first!r} on this host")
    if is_python(first):
        position = _program(rest)
        if position is not None and not rest[position].startswith("-"):
            script = rest[position]
    if script is not None and not os.path.exists(script):
        raise ConfigError(f"the script {script!r} does not exist in {os.getcwd()}")


def _program(arguments: Sequence[str]) -> int | None:
    """Index of the script or of `-m` among an interpreter's arguments; None for `-c`, `-` or no argument."""
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if not argument.startswith("-"):
            return position
        letter = _letter_with_value(argument)
        if argument == "-" or letter == "c":
            return None
        if letter == "m":
            return position
        takes_next = argument == "--check-hash-based-pycs" or (letter is not None and argument.endswith(letter))
        position += 2 if takes_next else 1
    return None


def _letter_with_value(argument: str) -> str | None:
    """The first letter of a short option such as `-uW` that takes a value: c, m, W or X."""
    if argument.startswith("--"):
        return None
    return next((letter for letter in argument[1:] if letter in "cmWX"), None)


def _split_module(argument: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`-um` -> `-u` and nothing, `-mname` -> nothing and `name`."""
    flags, _, name = argument[1:].partition("m")
    return (("-" + flags,) if flags else (), (name,) if name else ())


def _is_own(arguments: Sequence[str], position: int) -> bool:
    """Whether the arguments run a module of hybridps, or mpi4py's runner."""
    if not arguments[position].startswith("-"):
        return False
    name = "".join(_split_module(arguments[position])[1]) or "".join(arguments[position + 1 : position + 2])
    return name.split(".")[0] in _OWN
