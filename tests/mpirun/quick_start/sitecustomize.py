"""Python imports this first in the processes of tests, most of whose time is the import of MXNet.

MXNet imports scikit-learn for a base class of its deprecated `FeedForward`, and scipy to convert sparse arrays and to
calibrate quantised networks. It does without where they are not installed. It needs requests only for downloads, and
the `distutils` of Python instead of that of setuptools would do. It also generates the source of 2,500 functions, one
for each operator, and compiles them, which takes more than half of the time. Here only the first process does so.
"""

import atexit
import builtins
import contextlib
import importlib.util
import marshal
import os
import sys
from pathlib import Path

_KEPT = Path(__file__).parent / "__pycache__" / f"operators-of-mxnet.{sys.implementation.cache_tag}.marshal"
"""The compiled functions. Python keeps what it has compiled of this file in the same folder."""

_GENERATORS = {
    "_make_ndarray_function": "_generate_ndarray_function_code",
    "_make_symbol_function": "_generate_symbol_function_code",
}
"""The functions of MXNet that make an operator's function, and those that generate its source."""

_ANY = 10**18
"""Stands for the address of an operator, which is another one in each process."""


class _Imports:
    """Hides some packages from MXNet while it is imported, and from nobody else; imports requests when it is used."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not getattr(getattr(sys.modules.get("mxnet"), "__spec__", None), "_initializing", False):
            return None
        if name in ("sklearn", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "requests":
            specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not _Imports)
            spec = next(filter(None, specs))
            spec.loader = importlib.util.LazyLoader(spec.loader)
            return spec
        return None


class _Operators:
    """Stands in for `exec`, until MXNet's generators of source are those of this class."""

    def __init__(self):
        self._kept = None
        self._is_complete = True
        self._left = {*_GENERATORS}

    def __call__(self, source, namespace=None, local=None, /, **options):
        caller = sys._getframe(1)
        if caller.f_code.co_name in self._left and caller.f_globals["__name__"].startswith("mxnet."):
            self._left.remove(caller.f_code.co_name)
            generator = _GENERATORS[caller.f_code.co_name]
            caller.f_globals[generator] = self._keeping(caller.f_globals[generator])
            if not self._left:
                builtins.exec = _exec
        if namespace is None:
            namespace, local = caller.f_globals, caller.f_locals if local is None else local
        _exec(source, namespace, namespace if local is None else local, **options)

    def _keeping(self, generate):
        """Return a generator that returns compiled code in place of source."""
        if self._kept is None:
            self._kept = {}
            with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
                self._kept = marshal.loads(_KEPT.read_bytes())
            atexit.register(self._keep)
        kept = self._kept.setdefault(generate.__name__, {})

        def generated(operator, name, function):
            if (name, function) not in kept:
                source, text = generate(operator, name, function)
                general = source.replace(str(operator.value), str(_ANY))
                kept[name, function] = compile(general, "<operator>", "exec"), text
                self._is_complete = False
            code, text = kept[name, function]
            return _with_address(code, operator.value), text

        return generated

    def _keep(self):
        if self._is_complete:
            return
        partial = _KEPT.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            _KEPT.parent.mkdir(exist_ok=True)
            partial.write_bytes(marshal.dumps(self._kept))
            os.replace(partial, _KEPT)


def _with_address(code, address):
    """Return compiled code with that address of an operator."""
    constants = (
        address if each == _ANY else _with_address(each, address) if isinstance(each, type(code)) else each
        for each in code.co_consts
    )
    return code.replace(co_consts=tuple(constants))


_exec = builtins.exec
builtins.exec = _Operators()
sys.meta_path.insert(0, _Imports)
os.environ["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"
with contextlib.suppress(KeyError, AttributeError):
    sys.modules["_distutils_hack"].remove_shim()
