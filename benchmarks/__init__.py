"""Benchmarks: side by side in one run, alternating, medians. Each is a module to run with `python -m`."""
