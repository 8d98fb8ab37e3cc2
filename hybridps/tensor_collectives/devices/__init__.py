"""The tensor collectives for vectors in device memory. A device packs and sums its vectors; the result is combined over
the ranks and unpacked again.

A caller makes a `DeviceTensor` and calls the operations of this room on it.
"""

from hybridps.tensor_collectives.devices.device_tensor import DeviceTensor
from hybridps.tensor_collectives.devices.operations import allgather_, allreduce_, broadcast_, reduce_, reduce_scatter

__all__ = ["DeviceTensor", "allgather_", "allreduce_", "broadcast_", "reduce_", "reduce_scatter"]
