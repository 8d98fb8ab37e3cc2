"""`python -m hybridps train.py`: MXNet is imported where the script does so, and then knows the KVStore types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ARRAYS_ALONE = """
import sys
assert "mxnet" not in sys.modules and "hybridps.kvstore" not in sys.modules
"""

WITH_MXNET = """
import gc
import mxnet.gluon
from mxnet.kvstore import KVStoreBase
assert "dist_hybridps_sync" in KVStoreBase.kv_registry
assert gc.isenabled()
"""

MXNETS_OWN = """
import mxnet as mx
for name, instead in {"dist_sync": "_sync", "dist_async": "_async", "dist_hybrid": ""}.items():
    try:
        mx.kv.create(name)
    except mx.MXNetError as error:
        assert f"{name!r} would need MXNet's own scheduler" in str(error), error
        assert f"use 'dist_hybridps{instead}'" in str(error), error
    else:
        raise AssertionError(name)
mx.kv.create("local"), mx.kv.create("device")
"""

OF_ANOTHER_NUMPY = """
import numpy
numpy.__version__ = "1.26.4"
from hybridps.mxnet_import import register_types_with_mxnet
register_types_with_mxnet()
"""


def run(tmp_path: Path, script: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "hybridps", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_script_without_mxnet_does_not_wait_for_it(tmp_path: Path) -> None:
    assert run(tmp_path, ARRAYS_ALONE) == ""


def test_mxnet_knows_the_types_when_the_script_has_imported_it(tmp_path: Path) -> None:
    pytest.importorskip("mxnet")
    run(tmp_path, WITH_MXNET)


def test_a_type_of_mxnets_own_is_refused_with_the_one_to_use(tmp_path: Path) -> None:
    pytest.importorskip("mxnet")
    run(tmp_path, MXNETS_OWN)


def test_a_numpy_that_mxnet_cannot_run_with_is_named(tmp_path: Path) -> None:
    pytest.importorskip("mxnet")
    assert "MXNet 1.9.1 cannot run with NumPy 1.26.4: pip install" in run(tmp_path, OF_ANOTHER_NUMPY)
