"""`hybridps run`: starts the servers and one mpirun for each group, and watches them until they end.

A caller passes the result of `plan.make_launch` to `launcher.run`. This file imports nothing: `hybridps doctor` and the
benchmarks use only `mpirun.py` and `hosts.py`, also where the launcher itself cannot be imported.
"""
