"""Training, and exchanges of many light groups, under a schedule of faults: `python -m benchmarks.chaos`.

`schedule` says when what happens to whom, `training` and `light` do it, `outcomes` sums up, `chains` compares weights.
"""
