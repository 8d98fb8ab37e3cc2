"""Benchmarks: contenders run side by side, in turn, in one run, and medians are reported. Run each with `python -m`."""
