"""Synchronous SGD step by step: one iteration as a graph of tasks, and when each task runs.

`live` predicts a run of this package on a calibrated machine, and compares it with a measured run. `trace` replays a
measured trace with other ways to send the gradients. `dag.place` schedules an iteration.
"""
