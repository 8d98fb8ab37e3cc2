"""Synchronous SGD step by step: one iteration as a graph of tasks, and when each task runs.

A caller predicts a run of this package on a calibrated machine, and compares that with a measured run (`live`), or
replays a measured trace with other ways to send the gradients (`trace`). `dag.place` places an iteration.
"""
