"""The server without transport: jobs and their tables.

The loop calls the methods of `Jobs`. They return records (`ps/model.py`) of what follows: tasks for worker threads,
answers.
"""

from hybridps.ps.server.tables.jobs import Jobs

__all__ = ["Jobs"]
