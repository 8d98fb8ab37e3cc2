"""The operations of a group of ranks: the contract that every implementation fulfils."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from hybridps.errors import GroupError, LayoutError

Operation = Literal["sum", "max", "min"]

UFUNC: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""NumPy's function for each operation."""

LOOK_SECONDS = 0.5
"""How often a waiting rank checks whether a rank that it needs has left."""

Transfer = Callable[[], bool]
"""A message in transfer. A call returns whether it is complete, and lets the library make progress. The caller must not
use the array until it is complete."""


class Group(Protocol):
    """Ranks that call the same operations in the same order, each with arrays of equal length and dtype.

    Arrays are one-dimensional, contiguous, of float32, float64, int32, int64 or uint8. One thread of a rank uses a
    group at a time. The names of in-place functions end in an underscore.

    Arrays that differ between ranks raise LayoutError on all ranks. Over MPI this check covers arrays of more than 32
    KB. For smaller ones it would take as long as the operation, so the behaviour is that of the MPI library. Tensors
    made by `Levels.tensor` are compared when they are made, whatever their size.
    """

    rank: int
    """From 0 to size - 1; rank 0 is the leader."""
    size: int
    bytes_moved: int
    """The payload bytes that this rank has handed to collectives so far; 0 in a group of one."""

    def allreduce_(self, array: np.ndarray, op: Operation = "sum") -> None:
        """Replace `array` by the element-wise `op` over all ranks."""

    def broadcast_(self, array: np.ndarray, root: int = 0) -> None:
        """Replace `array` by that of rank `root`."""

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in rank order. Lengths may differ. For agreement, not for the hot path."""

    def send(self, array: np.ndarray, to: int, tag: int) -> Transfer:
        """Begin to send to rank `to`. Messages between two ranks with the same `tag` (0 to 32767) stay in order."""

    def receive(self, array: np.ndarray, source: int, tag: int) -> Transfer:
        """Begin to receive a message of the array's length from rank `source`."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""

    def begin(self) -> None:
        """Begin an operation that consists of messages, on all ranks. The other operations call this themselves."""

    def check_left(self, what: str) -> None:
        """Raise GroupError if a rank that is needed in the operation called `what` has left, after its farewell.

        Callers that wait for messages call this about every `LOOK_SECONDS`. The other operations call it themselves.
        """

    def farewell(self) -> None:
        """Tell the other ranks, at the end of a job, that this one leaves. Wait without a deadline for all to leave."""

    def split(self, colour: int) -> Group:
        """Return the group of the ranks with the same `colour`, in this group's order, with its own communicator."""

    def free(self) -> None:
        """Release the group's resources. It cannot be used afterwards."""


def allgather(group: Group, value: Any, kind: Any) -> list[Any]:
    """Return the record of every rank, in rank order. Msgspec decodes each as `kind`."""
    return [msgspec.json.decode(told, type=kind) for told in group.allgather_bytes(msgspec.json.encode(value))]


def rank_ended(rank: int, waiting: int, what: str) -> GroupError:
    """Return the error of rank `waiting`, which waits in vain for another rank in the operation `what`."""
    return GroupError(
        f"rank {rank} has ended its part of the job, and rank {waiting} waits for it in {what}: all ranks of a group "
        "must do the same steps, so give each of them the same number of batches"
    )


def describe(array: np.ndarray) -> str:
    """Describe what must be equal on all ranks of a collective."""
    return f"{array.size} elements of {array.dtype}"


def arrays_differ(what: str, forms: Sequence[str]) -> LayoutError:
    """Return the error for ranks whose arrays, described by `describe`, differ in the collective `what`."""
    rank = next(rank for rank, form in enumerate(forms) if form != forms[0])
    return LayoutError(
        f"rank {rank} has {forms[rank]} in {what}, and rank 0 has {forms[0]}: all ranks must have arrays of the same "
        "length and dtype"
    )
