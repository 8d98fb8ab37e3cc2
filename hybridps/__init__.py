"""MPI and a parameter server together in distributed deep-learning training.

Importing this package starts nothing and needs neither MPI nor MXNet.
"""

__version__ = "0.1.0"
