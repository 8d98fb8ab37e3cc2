"""`hybridps compare`: trains a script with several algorithms in turn, and makes one page of what came out.

A caller passes a `Comparison` and a folder to `compare.compare`. The face imports nothing.
"""
