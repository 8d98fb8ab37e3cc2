"""The numbers of MXNet's servers and workers as nodes of ps-lite."""

from __future__ import annotations

WORKERS = 4
"""The number for all workers. The scheduler is 1, all servers are 2, and a sum stands for several of these."""

FIRST_NODE = 8
"""The number of server 0. Worker 0 has the next one, and so on in turn."""


def watched_workers(node_id: int, workers: int) -> set[int]:
    """Return the workers that a node number stands for, out of `workers`; 0 stands for all.

    >>> watched_workers(4, 3), watched_workers(2, 3), watched_workers(11, 3)
    ({0, 1, 2}, set(), {1})
    """
    if not node_id or (node_id < FIRST_NODE and node_id & WORKERS):
        return {*range(workers)}
    worker, is_worker = divmod(node_id - FIRST_NODE, 2)
    return {worker} if is_worker and 0 <= worker < workers else set()
