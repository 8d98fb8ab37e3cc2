"""Training, and exchanges of many light groups, under a schedule of faults: `python -m benchmarks.chaos`.

`schedule` decides which fault happens when and to whom, `training` and `light` inject the faults, `outcomes` summarises
them, and `chains` compares weights.
"""
