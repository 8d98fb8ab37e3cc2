"""Neural networks as data: layers with their shapes, parameters and times.

A caller builds a `Network` by hand, takes one of the well-known networks by name (`built_in`), or reads one from a
file (`read_network`).
"""

from hybridps.oracle.networks.files import NETWORKS, built_in, read_mask, read_network, write_network
from hybridps.oracle.networks.network import OTHER, Layer, Network, checked, fed_by

__all__ = [
    "NETWORKS",
    "OTHER",
    "Layer",
    "Network",
    "built_in",
    "checked",
    "fed_by",
    "read_mask",
    "read_network",
    "write_network",
]
