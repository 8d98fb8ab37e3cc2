"""The groups of a launch: how they start, how they end, and which of them are restarted.

The launcher uses each file by itself.
"""
