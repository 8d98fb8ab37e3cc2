"""The commands of `hybridps oracle`. `cli/app.py` adds `oracle_app`; nothing else here has callers outside.

Each command imports the oracle when it runs, so that `hybridps --help` does not load it.
"""

from hybridps.cli.oracle import predict, runs, traffic
from hybridps.cli.oracle.options import oracle_app

__all__ = ["oracle_app", "predict", "runs", "traffic"]
