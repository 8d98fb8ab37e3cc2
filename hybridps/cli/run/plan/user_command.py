"""Turns the user's command into the command that each rank runs. Pure."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from hybridps.errors import ConfigError

_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*")
_OPTION = re.compile(r"-([^-cmWX]*)([cmWX]?)(.*)", re.DOTALL)
"""Options of the interpreter in one word: flags, a letter that takes a value, and the value unless it comes next."""

_BARE = ("python", "python3")
_OWN = ("hybridps", "mpi4py")


def wrap(command: Sequence[str], python: str = sys.executable, runner: str = "hybridps") -> tuple[str, ...]:
    """Return the command with a runner before the script: by default hybridps, which registers the KVStore types.

    >>> wrap(["python", "-u", "train.py", "--epochs", "3"], python="/venv/bin/python")
    ('/venv/bin/python', '-u', '-m', 'hybridps', 'train.py', '--epochs', '3')
    >>> wrap(["train.py"], python="/venv/bin/python")
    ('/venv/bin/python', '-m', 'hybridps', 'train.py')
    >>> wrap(["python3.11", "-m", "package.train"], python="/venv/bin/python")
    ('python3.11', '-m', 'hybridps', '-m', 'package.train')

    `python` and `python3` mean the Python that hybridps is installed in; any other interpreter is used
    as given. Commands that already run `-m hybridps` or `-m mpi4py`, Python code given with `-c`, scripts
    whose names do not end in `.py`, and programs other than Python are left alone.
    """
    first, rest = command[0], command[1:]
    if first.endswith(".py"):
        return (python, "-m", runner, first, *rest)
    if not is_python(first):
        return tuple(command)
    interpreter = python if first in _BARE else first
    options, program = _split(rest)
    of_module = program[:1] == ["-m"] and program[1:] and program[1].split(".")[0] not in _OWN
    if of_module or (program and program[0].endswith(".py")):
        return (interpreter, *options, "-m", runner, *program)
    return (interpreter, *rest)


def check(command: Sequence[str]) -> None:
    """Raise ConfigError if the program or the script of a user's command does not exist here."""
    if not command:
        raise ConfigError("no command was given: hybridps run [OPTIONS] -- python train.py")
    first = command[0]
    if not first.endswith(".py") and first not in _BARE and shutil.which(first) is None:
        raise ConfigError(f"there is no program {first!r} on this host{_hint(command)}")
    script = first if first.endswith(".py") else ""
    if is_python(first):
        _, program = _split(command[1:])
        script = program[0] if program and program[0] != "-m" else ""
    if script and not os.path.exists(script):
        where = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise ConfigError(f"the script {script!r} does not exist{where}{_hint(command)}")


def _hint(command: Sequence[str]) -> str:
    """Return advice for a command that only a shell would understand, such as MXNet's `launch.py` uses."""
    first = command[0]
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", first, re.DOTALL):
        return f": give variables with -x {first} before the command"
    if re.fullmatch(r"[\w.-]+:[0-9]+", first):
        return ": hosts are separated by commas, as in -H node1:2,node2:2"
    if len(command) == 1 and " " in first:
        return ": leave out the quotes around the command, or run bash -c 'COMMAND'"
    return ""


def is_python(program: str) -> bool:
    """Return whether a program is a Python interpreter, by its name."""
    return _INTERPRETER.fullmatch(os.path.basename(program)) is not None


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return an interpreter's own options; then the script or `-m` and module, with arguments (nothing for `-c`, `-`).

    >>> _split(["-um", "package.train", "x"]), _split(["-W", "ignore", "a.py"])
    ((['-u'], ['-m', 'package.train', 'x']), (['-W', 'ignore'], ['a.py']))
    """
    options, rest = [], list(arguments)
    while rest and (found := _OPTION.fullmatch(rest[0])):
        word = rest.pop(0)
        flags, letter, value = found.groups()
        if word == "-" or letter == "c":
            return [], []
        if letter == "m":
            options += [f"-{flags}"] if flags else []
            return options, ["-m", *([value] if value else []), *rest]
        takes_next = word == "--check-hash-based-pycs" or (letter and not value)
        options += [word, *([rest.pop(0)] if takes_next and rest else [])]
    return options, rest
