"""Python imports this first in the processes of tests, most of whose time is the import of MXNet.

MXNet imports scikit-learn for a base class of its deprecated `FeedForward`, and scipy to convert sparse arrays and to
calibrate quantised networks. It does without where they are not installed. It also generates the source of 2,500
functions, one for each operator, and compiles them, which takes half of the time. Here only the first process compiles
them.
"""

import atexit
import builtins
import contextlib
import marshal
import os
import sys
from pathlib import Path

_KEPT = Path(__file__).parent / "__pycache__" / f"operators-of-mxnet.{sys.implementation.cache_tag}.marshal"
"""The compiled functions. Python keeps what it has compiled of this file in the same folder."""

_CALLS = "_imperative_invoke(", "_symbol_creator("
"""What precedes the number of an operator in the source of its function. It is another number in each process."""

_ANY = 10**18
"""Stands for all such numbers."""


def _imports_mxnet():
    return getattr(getattr(sys.modules.get("mxnet"), "__spec__", None), "_initializing", False)


class _WithoutLibraries:
    """Hides these packages from MXNet while it is imported, and from nobody else."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if _imports_mxnet() and name in ("sklearn", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _Operators:
    """Stands in for `exec`, with the functions that an earlier process has compiled."""

    def __init__(self):
        self.kept = None
        self.is_complete = True

    def __call__(self, source, namespace=None, local=None, /, **options):
        caller = sys._getframe(1)
        if isinstance(source, str) and _imports_mxnet():
            source = self._compiled(source)
        if namespace is None:
            namespace, local = caller.f_globals, caller.f_locals if local is None else local
        _exec(source, namespace, namespace if local is None else local, **options)

    def _compiled(self, source):
        if self.kept is None:
            self.kept = {}
            with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
                self.kept = marshal.loads(_KEPT.read_bytes())
            atexit.register(self._keep)
        call = next((each for each in _CALLS if each in source), "")
        before, _, after = source.rpartition(call) if call else ("", "", "")
        number = after.partition(",")[0]
        if not number.isdigit():
            return source
        general = f"{before}{call}{_ANY}{after[len(number) :]}"
        if general not in self.kept:
            self.kept[general], self.is_complete = compile(general, "<operator>", "exec"), False
        return _with_number(self.kept[general], int(number))

    def _keep(self):
        if self.is_complete:
            return
        partial = _KEPT.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            partial.write_bytes(marshal.dumps(self.kept))
            os.replace(partial, _KEPT)


def _with_number(code, number):
    """Return compiled code with that number of an operator."""
    constants = (
        number if each == _ANY else _with_number(each, number) if isinstance(each, type(code)) else each
        for each in code.co_consts
    )
    return code.replace(co_consts=tuple(constants))


_exec = builtins.exec
builtins.exec = _Operators()
sys.meta_path.insert(0, _WithoutLibraries)
