"""The picture of a report: `python docs/pictures/report.py` trains as docs/tutorial.md does, and keeps its plot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

EXAMPLE = Path(__file__).parents[2] / "examples" / "gluon_digits.py"


def main() -> None:
    """Train, and write `report.png` beside this file."""
    with TemporaryDirectory() as folder:
        launch = ["hybridps.cli", "run", "-n", "4", "--groups", "2", "--algorithm", "elastic", "--run", folder, "--"]
        subprocess.run([sys.executable, "-m", *launch, sys.executable, str(EXAMPLE)], check=True)
        shutil.copy(Path(folder, "training.png"), Path(__file__).with_name("report.png"))


if __name__ == "__main__":
    main()
