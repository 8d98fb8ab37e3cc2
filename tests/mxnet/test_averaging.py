"""KVStore types of the algorithms that average weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rightness import assert_right
from worlds import mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(200)]

USES = str(Path(__file__).with_name("averaging.py"))


@pytest.mark.parametrize(
    ("uses", "settings"),
    [
        pytest.param(["every_type"], {"tau": "2"}, marks=pytest.mark.nightly),
        (["another_optimizer", "every_type"], {"trigger": "change:0.01,silence=3"}),
        (["alpha_of_the_rate"], {"rho": "2.5", "tau": "1"}),
    ],
)
def test_uses(uses: list[str], settings: dict[str, str]) -> None:
    extra = {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items()} | {"HYBRIDPS_GROUPS": "2"}
    assert_right(mpirun(2, ["-m", "hybridps", USES, *uses], extra, timeout=180), uses, 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "sync", "trigger": "change:0.1"}, "HYBRIDPS_TRIGGER='change:0.1' has no meaning"),
        pytest.param(
            {"algorithm": "elastic", "trigger": "chnge:0.1"}, "did you mean 'change'", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_trigger_that_cannot_be_is_refused_once(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mxnet as mx\nkv = mx.kv.create('dist_hybridps')\n")
    extra = {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items()} | {"HYBRIDPS_GROUPS": "2"}
    done = mpirun(2, ["-m", "hybridps", str(script)], extra, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(said) == 1, done.stderr


def test_an_algorithm_of_another_package_is_a_type_too(tmp_path: Path) -> None:
    """That of docs/algorithms.md; and a name that a paper has."""
    text = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    (tmp_path / "my_package.py").write_text(text.split("```python\n")[1].split("```")[0])
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hybridps.algorithms]\nhalf-way = my_package:half_way\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import mxnet as mx\n"
        "for name in ('half-way', 'local-sgd', 'HALF-way_sync'):\n"
        "    print(mx.kv.create(f'dist_hybridps_{name}').type)\n"
        "for name in ('dist_hybridps_hlaf-way', 'hybridps', 'hybridps_elastic'):\n"
        "    try:\n"
        "        mx.kv.create(name)\n"
        "    except mx.MXNetError as error:\n"
        "        print(error)\n"
    )
    extra = {"HYBRIDPS_GROUPS": "2", "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = mpirun(2, ["-m", "hybridps", str(script)], extra, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("dist_hybridps_half-way_sync") == 4
    assert lines.count("dist_hybridps_local_sync") == 2
    assert done.stdout.count("the KVStore type 'dist_hybridps_hlaf-way' is unknown; did you mean ") == 2
    assert done.stdout.count("the KVStore type 'hybridps' is unknown; did you mean 'dist_hybridps'?") == 2
    assert done.stdout.count("'hybridps_elastic' is unknown; did you mean 'dist_hybridps_elastic'?") == 2
