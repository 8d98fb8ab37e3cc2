"""`hybridps compare`: trains a script with several algorithms in turn, and writes one page with the results.

A caller passes a `Comparison` and a folder to `compare.compare`. This file imports nothing.
"""
