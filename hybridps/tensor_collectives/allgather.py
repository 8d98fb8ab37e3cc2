"""Allgather: every vector of every rank becomes the parts of all ranks, one after the other."""

from __future__ import annotations

import numpy as np

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.tensor import Tensor, part_sizes, spread


def allgather_(tensor: Tensor, group: Group, part: np.ndarray) -> None:
    """Fill all vectors with the parts of all ranks; the inverse of the scatter in `reduce_scatter`.

    `part`: flat, of the tensor's dtype, with `part_sizes(length, group.size)[group.rank]` elements (else
    LayoutError).
    """
    counts = part_sizes(tensor.length, group.size)
    if part.shape != (counts[group.rank],) or part.dtype != tensor.dtype:
        raise LayoutError(
            f"part has {part.shape} of {part.dtype}, part {group.rank} is ({counts[group.rank]},) of {tensor.dtype}"
        )
    whole = tensor.vectors[0]
    if whole.dtype == np.float16:
        # MPI has no float16: the bytes are gathered.
        group.allgather(part.view(np.uint8), whole.view(np.uint8), [2 * count for count in counts])
    else:
        group.allgather(part, whole, counts)
    spread(whole, list(tensor.vectors[1:]))
