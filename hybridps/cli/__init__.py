"""The command line: `hybridps run | serve | top | keys | tune | doctor | report | oracle`.

A caller uses `main`; the commands are in `app.py`. Importing the command line loads neither MPI, MXNet nor ZeroMQ:
each command imports what it needs when it runs.
"""

from __future__ import annotations


def main(argv: list[str] | None = None) -> None:
    """Run the command line with these arguments (default: those of the process), and exit with its status."""
    from hybridps.cli.app import main as run_app

    run_app(argv)
