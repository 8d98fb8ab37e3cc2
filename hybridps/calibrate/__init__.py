"""Measures this machine for the oracle: links, servers, memory, kernels, a network's layers and steps."""
