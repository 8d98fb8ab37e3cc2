"""The command line: `hybridps run | serve | top | keys | tune | doctor | report | oracle`.

A caller uses `main`; the commands are in `app.py`. Importing the command line loads neither MPI, MXNet nor ZeroMQ:
each command imports what it needs when it runs.
"""

from hybridps.cli.app import main

__all__ = ["main"]
