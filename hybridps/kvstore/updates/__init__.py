"""Who updates what a store has, and by what: the servers, or the worker with MXNet's own code. Callers use `Updates`.

A server process that runs MXNet's optimizers uses `server_optimizer`.
"""

from hybridps.kvstore.updates.updates import Updates

__all__ = ["Updates"]
