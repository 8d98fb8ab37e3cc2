"""The server without transport: jobs, their tables, the rounds of a chunk, and its memory.

The loop drives `Jobs` by calls. They return records (`ps/model.py`) of what follows: tasks for the workers, answers.
"""

from hybridps.ps.server.tables.jobs import Jobs

__all__ = ["Jobs"]
