"""The command line: `hybridps run | serve | doctor | report`.

Starting it imports neither MPI, nor MXNet, nor ZeroMQ: each command imports what it needs.
"""

from __future__ import annotations


def main(argv: list[str] | None = None) -> None:
    """Run the command line on these arguments (default: those of the process), and exit with its status."""
    from hybridps.cli.app import main as run_app

    run_app(argv)
