"""Measures this machine for the oracle: links, servers, memory, kernels, and the layers and steps of a network.

`hybridps oracle calibrate` calls `calibrate.calibrate`; `hybridps oracle compare` calls `runs.describe` and
`runs.measure`. Each measurement runs in separate processes.
"""
