"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in full or not at all, also if several processes write it, on several hosts. Raises OSError."""
    partial = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
