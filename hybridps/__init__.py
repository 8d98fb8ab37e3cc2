"""Distributed deep-learning training with MPI and a parameter server together.

Importing this package starts nothing and needs neither MPI nor MXNet.
"""

import os

from hybridps.progress import report_progress
from hybridps.resuming import Resume, leaving, resume
from hybridps.tracing.loading import loading

__all__ = ["Resume", "leaving", "loading", "report_progress", "resume"]
__version__ = "0.1.0"

# Where colorama is installed, numba would write an escape sequence to standard output when the process ends.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
