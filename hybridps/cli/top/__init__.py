"""`hybridps top`: shows the jobs of a running server, read from its Prometheus metrics.

The command calls `watch`. `read` returns a server's figures, and `page` renders them; tests use these two as well.
"""

from hybridps.cli.top.figures import Figures, read
from hybridps.cli.top.page import page
from hybridps.cli.top.watch import watch

__all__ = ["Figures", "page", "read", "watch"]
