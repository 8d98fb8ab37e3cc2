"""The wheel, without the repository: it has all that is needed, and installs into an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("wheel")

ROOT = Path(__file__).parents[2]
FROM_OUTSIDE = ("PYTHON", "HYBRIDPS_", "OMPI_", "PMIX_", "VIRTUAL_ENV")
TRAIN = "from hybridps.job import open_job\nwith open_job() as job: print(f'worker {job.worker} of {job.workers}')"


def call(*command: object, folder: Path, timeout: float, path: Path | None = None) -> str:
    """What a command says that knows nothing of the repository. `path`: programs come from there, or the system."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FROM_OUTSIDE)}
    if path is not None:
        environ["PATH"] = f"{path}:/usr/bin:/bin"
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "hybridps"):
        (source / name).symlink_to(ROOT / name)
    build = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
    )
    call(*build, source, folder=folder, timeout=100)
    (made,) = folder.glob("hybridps-*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(wheel):
    listed = subprocess.run(["git", "ls-files", "hybridps"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no repository")
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert {name for name in listed.stdout.split() if (ROOT / name).exists()} <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"hybridps"}


@pytest.mark.slow
def test_the_installed_wheel_needs_no_repository(wheel, tmp_path):
    """Its dependencies are those of this environment; the package is the wheel's alone."""
    target = tmp_path / "installed"
    call(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        target,
        wheel,
        folder=tmp_path,
        timeout=60,
    )
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import hybridps; print(hybridps.__file__)\n"
    code += "from hybridps.cli import main; main(['oracle', 'predict', '--network', 'alexnet', '--machine', 'abci', "
    code += "'--strategy', 'data', '--pes', '4', '--batch', '64'])"
    said = call(sys.executable, "-I", "-c", code, folder=tmp_path, timeout=60)
    assert str(target) in said
    assert "data" in said.partition("\n")[2]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_it_installs_into_an_empty_environment_by_the_advice_of_the_doctor(wheel, tmp_path):
    """What the doctor says to type is typed, until it finds no problem; then two groups train."""
    call(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path, timeout=60)
    programs = tmp_path / "venv" / "bin"
    pip = (programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    call(*pip, wheel, folder=tmp_path, timeout=300, path=programs)
    (tmp_path / "train.py").write_text(TRAIN)
    typed = []
    for _ in range(4):
        doctor = subprocess.run(
            [programs / "hybridps", "doctor"],
            cwd=tmp_path,
            env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        advice = re.findall(
            r"^(?:problem|note) +(?:mpirun|two MPI ranks|NumPy|MXNet): .*?(pip install '[^']+')", doctor.stdout, re.M
        )
        if not advice:
            break
        for command in advice:
            call("bash", "-c", f"{command} -q", folder=tmp_path, timeout=400, path=programs)
        typed += advice
    assert "pip install 'hybridps[mxnet]'" in typed
    assert doctor.returncode == 0, doctor.stdout
    assert "ok      MXNet: 1.9.1" in doctor.stdout
    launch = (programs / "hybridps", "run", "-n", "2", "--groups", "2", "--", "python", "train.py")
    said = call(*launch, folder=tmp_path, timeout=120, path=programs)
    assert {"[group 0] worker 0 of 2", "[group 1] worker 1 of 2"} <= set(said.splitlines())


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_all_extras_at_once(wheel, tmp_path):
    """`pip install hybridps[mpi,mxnet]`, and an MXNet script under the launcher."""
    call(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path, timeout=60)
    programs = tmp_path / "venv" / "bin"
    call(
        programs / "python",
        "-m",
        "pip",
        "install",
        "-q",
        f"{wheel}[mpi,mxnet]",
        folder=tmp_path,
        timeout=600,
        path=programs,
    )
    for name in ("digits.py", "gluon_digits.py"):
        (tmp_path / name).write_text((ROOT / "examples" / name).read_text())
    launch = (programs / "hybridps", "run", "-n", "2", "--groups", "2", "--", "python", "gluon_digits.py")
    said = call(*launch, folder=tmp_path, timeout=200, path=programs)
    assert "hybridps: epoch 4: accuracy" in said
