"""A small disk, to fill it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A new file system of this size at `folder`. Skips the test where it cannot be mounted, as without root."""
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk of a folder to the last byte, with a file that is returned."""
    path = folder / "filling"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return path
