"""The oracle predicts what training costs before it runs: time, memory, communication, and the bottleneck.

Its rooms build on each other. `networks` and `machines` describe the question; `paradl`, `ssgd` and `hybrid` answer it
with three models; `output` prints and draws the answers. The `__init__` of each room says what a caller uses.
"""
