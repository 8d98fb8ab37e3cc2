"""The units of what settings, options, metrics and events count."""

from __future__ import annotations

UNITS = {
    "seconds": "seconds",
    "bytes": "bytes",
    "nbytes": "bytes",
    "tau": "steps",
    "staleness": "steps",
    "step": "steps",
    "steps": "steps",
    "epoch": "epochs",
    "epochs": "epochs",
    "workers": "workers",
    "worker": "index of a worker",
    "workers_per_group": "workers",
    "group_sizes": "workers",
    "ranks_per_node": "ranks",
    "ranks": "ranks",
    "groups": "groups",
    "stop_after_groups": "groups",
    "mxnet_groups": "groups",
    "group": "index of a group",
    "group_index": "index of a group",
    "rack_index": "index of a rack",
    "slowest_group": "index of a group",
    "group_rank": "rank in the group",
    "node": "index of a node",
    "racks": "racks",
    "servers": "servers",
    "server_count": "servers",
    "mxnet_servers": "servers",
    "server_threads": "threads",
    "threads": "threads",
    "server_cores": "indices of cores",
    "metrics_port": "port",
    "life": "restarts",
    "restarts": "restarts",
    "server_restarts": "restarts",
    "alpha": "share of the difference",
    "rho": "1 / learning rate",
    "outer_rate": "factor",
    "outer_momentum": "factor",
    "accuracy": "share, 0 to 1",
    "centre_accuracy": "share, 0 to 1",
    "to_accuracy": "share, 0 to 1",
    "change": "share of the norm",
    "distance": "share of the norm",
    "loss": "as the script computes it",
    "images": "images",
    "joins": "groups",
    "workers_on_host": "workers",
    "joined": "indices of groups",
    "numbers": "indices of workers",
    "ticket": "number of the ticket",
    "keys": "keys",
    "nodes": "nodes",
    "sent": "bytes",
    "status": "exit status",
    "started_at": "seconds since 1970",
    "seeds": "seeds",
    "batch": "samples",
    "pes": "processing elements",
    "most_tau": "steps",
    "backlog": "tasks",
    "requests": "requests",
    "connections": "connections",
    "messages": "messages",
    "refused": "requests",
    "not_finite": "requests",
    "rounds": "rounds",
    "values": "values",
    "least_efficiency": "share, 0 to 1",
    "us": "microseconds",
    "us_per_byte": "microseconds per byte",
    "batches": "steps",
    "silence": "steps",
    "factor": "factor",
    "exchanges": "exchanges",
}
"""Of a quantity, by its name or by how its name ends."""


def unit(name: str) -> str:
    """The unit of a quantity: the longest entry of `UNITS` that its name is, or ends with. Raises KeyError.

    >>> unit("heartbeat_seconds"), unit("bytes_to_servers")
    ('seconds', 'bytes')
    """
    words = name.split("_")
    ends = ("_".join(words[start:]) for start in range(len(words)))
    if words[0] == "bytes":
        return "bytes"
    for end in ends:
        if end in UNITS:
            return UNITS[end]
    raise KeyError(f"the quantity {name!r} has no unit: add it to UNITS of docs/reference/units.py")
