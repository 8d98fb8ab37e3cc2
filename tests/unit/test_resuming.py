"""Signals that tell a group to leave, and the processes that its ranks fork, such as those of a DataLoader."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

BEGIN = """
import os, signal, sys, time
from multiprocessing import get_context
from hybridps.processes import die_with_parent
from hybridps.resuming import notice

here = get_context("fork")

def work(number):
    time.sleep(0.01)
    return number

notice.listen(30)
"""
ENDS = """
pool = here.Pool(4, die_with_parent)
busy = pool.imap(time.sleep, [0, *[60] * 8])
next(busy)
pool.terminate()
pool.join()
"""
ENDS_AT_ONCE = """
for _ in range(200):
    child = os.fork()
    if not child:
        time.sleep(10)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
"""
OUTLIVES = """
pool = here.Pool(2, die_with_parent)
results = pool.imap(work, range(200))
assert next(results) == 0
for process in pool._pool:
    os.kill(process.pid, signal.SIGUSR1)  # mpirun sends it to the whole process group of a rank
assert list(results) == list(range(1, 200))
assert not notice.given
os.kill(os.getpid(), signal.SIGUSR1)
assert notice.given
"""
OWN = """
def own(number, frame):
    pass

def has_own():
    sys.exit(0 if signal.getsignal(signal.SIGTERM) is own else 1)

signal.signal(signal.SIGTERM, own)
child = here.Process(target=has_own)
child.start()
child.join()
assert child.exitcode == 0
"""


IDS = ["ends on SIGTERM", "ends on an early SIGTERM", "outlives SIGUSR1", "keeps its own"]


@pytest.mark.parametrize("program", [ENDS, ENDS_AT_ONCE, OUTLIVES, OWN], ids=IDS)
def test_a_forked_process(program: str) -> None:
    command = [sys.executable, "-c", BEGIN + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == 0, done.stderr
