"""The runner: `python -m hybridps train.py ...` runs an unchanged script for which the KVStore types are registered.

An exception that the script does not handle ends its whole group. Other first arguments (`run`, `serve`, ...) go to the
command line.
"""

from __future__ import annotations

import atexit
import runpy
import socket
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType

from hybridps import progress
from hybridps.config import load_settings, started_by_mpi, world_rank, world_size
from hybridps.errors import ConfigError
from hybridps.events import Evaluated
from hybridps.mxnet_import import register_types_with_mxnet
from hybridps.processes import die_with_parent, use_memory_here


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        run_script(arguments[1:], as_module=True)
    elif arguments and arguments[0].endswith(".py"):
        run_script(arguments, as_module=False)
    else:
        from hybridps.cli import main as command_line

        command_line(arguments)


def run_script(arguments: list[str], as_module: bool) -> None:
    """Run `arguments[0]`, a file or the name of a module, as `__main__` with the other arguments."""
    from hybridps.mpi_groups import end_group

    if started_by_mpi():
        die_with_parent()
        use_memory_here()
    if not as_module and not Path(arguments[0]).is_file():
        where = "" if Path(arguments[0]).is_absolute() else f" in {Path.cwd()}"
        end_group(ConfigError(f"there is no script {arguments[0]}{where} on {socket.gethostname()}").on_all_ranks())
    register_types_with_mxnet()
    atexit.register(_clear_script)
    progress.listeners.append(_note_report)
    sys.argv = arguments
    try:
        if as_module:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            end_group(error)
    except BaseException as error:
        end_group(error.with_traceback(_of_the_script(error.__traceback__)))
    _end()


def _end() -> None:
    """Leave the job, and write the summary of its run folder unless the launcher does.

    As Python does, this first waits for threads of the script that are no daemons: they may train.
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    store = sys.modules.get("hybridps.kvstore")
    job = store.release() if store is not None else None
    if job is None:
        _say_if_apart()
        return
    settings = job.session.settings
    if job.worker == 0 and settings.run_folder and settings.group_index is None:
        from hybridps.cli.summary import print_summary

        print_summary(settings.run_folder, only_if_events=True)


def _note_report(event: Evaluated) -> None:
    if event.epoch > 0:
        _say_if_apart()


@cache
def _say_if_apart() -> None:
    """Say so, once, if this is the first of several workers, and the script has not connected it to the others."""
    from hybridps.mpi_groups import Session

    with suppress(ConfigError):
        settings = load_settings()
        is_first = world_rank() == 0 and not settings.group_index
        workers = sum(settings.group_sizes or (world_size(),))
        if not is_first or workers == 1 or Session.opened or "mxnet" not in sys.modules:
            return
        print(
            "hybridps: this script has made no KVStore of hybridps, so each worker has trained by itself, unless "
            "something else connects them: name the type in the Trainer (kvstore='dist_hybridps'), or make the store "
            "with mx.kv.create('dist_hybridps')",
            file=sys.stderr,
            flush=True,
        )


def _clear_script() -> None:
    """Free the script's objects while modules still work, as Python does with those of `__main__`. Called at the end.

    A DataLoader ends its processes when it is freed. `multiprocessing` keeps the script's module under this name.
    """
    script = sys.modules.pop("__mp_main__", None)
    if script is None or script is sys.modules.get("__main__") or any(map(_is_of_the_script, threading.enumerate())):
        return
    for name, value in list(vars(script).items()):
        if not (name.startswith("__") or isinstance(value, (ModuleType, FunctionType, type))):
            del vars(script)[name], value


def _is_of_the_script(thread: threading.Thread) -> bool:
    """Return whether a thread runs code of the script, and still needs its objects."""
    return "__main__" in (type(thread).__module__, getattr(getattr(thread, "_target", None), "__module__", None))


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this file and of runpy."""
    above = (__file__, run_script.__code__.co_filename, runpy.run_path.__code__.co_filename)
    while trace is not None and trace.tb_frame.f_code.co_filename in above:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
