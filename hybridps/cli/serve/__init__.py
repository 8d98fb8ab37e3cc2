"""`hybridps serve`: a parameter server, alone, as a rank of an MPI world, or MXNet's own.

`serve` in `serve.py` runs the server that the command's `ServeOptions` ask for.
"""
