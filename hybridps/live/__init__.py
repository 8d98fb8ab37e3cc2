"""What a job shows of itself while it runs: which workers are slow.

A rank's pace is measured in `hybridps.step.pace`; `slow` compares the ranks.
"""
