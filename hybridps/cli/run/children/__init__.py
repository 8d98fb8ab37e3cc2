"""The child processes of a launch, and what they print.

`Processes` starts them and reads their output; `Screen` shows it.
"""
