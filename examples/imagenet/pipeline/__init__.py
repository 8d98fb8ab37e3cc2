"""The input pipeline, from files to batches.

`train.py` uses `data`; `make_recordio.py` uses `sources` and `records`.
"""
