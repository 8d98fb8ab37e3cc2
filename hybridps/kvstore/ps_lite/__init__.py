"""The parameter store at MXNet's own servers (ps-lite): the backend `mxnet`."""

from __future__ import annotations

from hybridps.kvstore.ps_lite.store import MXNetStore, MXNetStores

__all__ = ["MXNetStore", "MXNetStores"]
