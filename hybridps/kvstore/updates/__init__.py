"""How a store's values are updated: by the servers, or by MXNet's own code on the worker. Callers use `Updates`.

A server process that runs MXNet's optimizers uses `server_optimizer`.
"""

from hybridps.kvstore.updates.updates import Updates

__all__ = ["Updates"]
