"""Run clients one after the other in this process: `several.py 'CLIENT ARGUMENT...' ...`."""

import runpy
import shlex
import sys
from pathlib import Path

for line in sys.argv[1:]:
    client, *arguments = shlex.split(line)
    sys.argv = [client, *arguments]
    runpy.run_path(str(Path(__file__).with_name(client)), run_name="__main__")
    print(f"{line} has ended", flush=True)
