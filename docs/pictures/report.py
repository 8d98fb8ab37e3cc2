"""The pictures of reports: `python docs/pictures/report.py` trains as docs/tutorial.md does, and keeps two pictures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

EXAMPLE = Path(__file__).parents[2] / "examples" / "gluon_digits.py"

PICTURES = {"training.png": ("report.png", ("--algorithm", "elastic")), "timeline.png": ("timeline.png", ("--trace",))}
"""Of a report: its name here, and the options of the run."""


def main() -> None:
    """Train, and write `report.png` and `timeline.png` beside this file."""
    for name, (kept, options) in PICTURES.items():
        with TemporaryDirectory() as folder:
            launch = ["hybridps.cli", "run", "-n", "4", "--groups", "2", *options, "--run", folder, "--"]
            subprocess.run([sys.executable, "-m", *launch, sys.executable, str(EXAMPLE)], check=True)
            shutil.copy(Path(folder, name), Path(__file__).with_name(kept))


if __name__ == "__main__":
    main()
