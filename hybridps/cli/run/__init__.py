"""`hybridps run`: starts the servers and one mpirun for each group, and watches them until they end.

A caller passes what `plan.make_launch` returns to `launcher.run`. This face imports nothing, since `hybridps doctor`
and the benchmarks use `mpirun.py` and `hosts.py` alone, where the launcher may not even import.
"""
