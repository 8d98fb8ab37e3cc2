"""The tensor collectives for vectors on a worker's devices: packed and summed there, combined, and unpacked."""

from hybridps.tensor_collectives.devices.device_tensor import DeviceTensor
from hybridps.tensor_collectives.devices.operations import allgather_, allreduce_, broadcast_, reduce_, reduce_scatter

__all__ = ["DeviceTensor", "allgather_", "allreduce_", "broadcast_", "reduce_", "reduce_scatter"]
