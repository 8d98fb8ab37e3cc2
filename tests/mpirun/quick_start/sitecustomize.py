"""Python imports this first in the processes of tests, most of whose time is the import of MXNet.

MXNet imports scikit-learn for a base class of its deprecated `FeedForward`, and scipy.stats to calibrate quantised
networks. It does without where they are not installed, and takes a third less time to import.
"""

import sys


class _WithoutStatistics:
    """Hides these packages from MXNet while it is imported, and from nobody else."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        importing = getattr(getattr(sys.modules.get("mxnet"), "__spec__", None), "_initializing", False)
        if importing and name in ("sklearn", "scipy.stats"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _WithoutStatistics)
