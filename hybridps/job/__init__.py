"""A job: the session, its servers, and the algorithms that run on them.

The entry point for code without MXNet:

    with open_job() as job:
        algorithm = job.algorithm()
"""

from hybridps.job.job import Job
from hybridps.job.opening import open_job

__all__ = ["Job", "open_job"]
