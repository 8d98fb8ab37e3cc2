"""The transfers of one chunk between nodes."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from hybridps.codecs import CODECS
from hybridps.memory import private_memory
from hybridps.mpi_groups.group import Group, Operation, Transfer
from hybridps.tensor_collectives import kernels

Steps = Generator[tuple[Transfer, ...], None, None]
"""An operation on one chunk, as a generator. It is resumed when the transfers that it has yielded are complete."""


class Talk:
    """The conversation of a lane about one chunk at a time.

    `nbytes`: the largest size of a chunk before it is encoded. `rank` and `size` are those in the lane. Chunks are
    combined exactly; `codec` says how they are encoded in transfer. Only sums may use a codec that is not exact.
    """

    def __init__(self, lane: Group, nbytes: int) -> None:
        self.lane = lane
        self.rank = lane.rank
        self.size = lane.size
        self.tag = 0
        self.op: Operation = "sum"
        self.codec = CODECS["exact"]
        self.scratch = private_memory(nbytes)
        """Memory for a chunk, for operations that need it."""
        self._landing = private_memory(nbytes)
        self._encoded = private_memory(nbytes)

    def swap(self, give: np.ndarray, to: int, take: np.ndarray, source: int, combine: bool) -> Steps:
        """Send `give` to rank `to`, and receive as many elements as `take` has from rank `source`.

        `combine`: whether the received elements are combined with `take` or replace it. Nothing is sent or received for
        an empty array.
        """
        transfers = []
        landing = self._landing_for(take, combine)
        if len(take):
            transfers.append(self.lane.receive(landing, source, self.tag))
        if len(give):
            transfers.append(self.lane.send(self._on_the_wire(give), to, self.tag))
        if transfers:
            yield tuple(transfers)
        if combine and self.codec.exact:
            kernels.accumulate_(take, landing, kernels.CODE[self.op])
        elif combine:
            self.codec.add(landing, take)
        elif not self.codec.exact:
            self.codec.decode(landing, take)

    def divided_(self, part: np.ndarray, divisor: float) -> float:
        """Divide `part` now if a codec will encode it, because a sum may exceed the codec's range.

        Returns the divisor that is left for later.
        """
        if self.codec.exact or divisor <= 1:
            return divisor
        np.divide(part, divisor, out=part)
        return 1.0

    def round_(self, part: np.ndarray) -> None:
        """Replace complete values by what the other nodes will decode, so that all nodes have the same bits."""
        if not self.codec.exact:
            self.codec.decode(self._on_the_wire(part), part)

    def _landing_for(self, take: np.ndarray, combine: bool) -> np.ndarray:
        """Return memory in which a message can arrive: `take` itself if the message needs no further work."""
        if not self.codec.exact:
            return self._landing[: self.codec.nbytes(len(take), take.dtype)]
        return self._landing.view(take.dtype)[: len(take)] if combine else take

    def _on_the_wire(self, part: np.ndarray) -> np.ndarray:
        if self.codec.exact:
            return part
        encoded = self._encoded[: self.codec.nbytes(len(part), part.dtype)]
        self.codec.encode(part, encoded)
        return encoded
