"""Networks as data: layers with their shapes and times, and checks that they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

import msgspec

from hybridps.errors import OracleError

ELEMENTWISE = ("RELU", "BNORM", "DROPOUT", "LRN", "SOFTMAX")
"""The kinds of layers whose output has the shape of their input."""

KINDS = ("CONV", "FC", "MPOOL", "APOOL", "ADD", "CONCAT", "FLATTEN", *ELEMENTWISE)
OTHER = "OTHER"


class Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer. Shapes are those of one sample: channels, then width, height and, for 3-D networks, depth.

    `weight` is (input channels, filters, kernel width, ...), with zeros or empty if the layer has none. For a
    convolution in groups, the first number is that of one group. `vector_items` are the other trainable items (bias,
    scale and shift). `after` has the positions of the layers whose outputs are the input; None: the previous layer.
    Times are seconds, for one sample (`forward`, `backward`) and for one iteration (`update`).
    """

    name: str
    kind: str
    input: tuple[int, ...]
    output: tuple[int, ...]
    weight: tuple[int, ...] = ()
    vector_items: int = 0
    after: tuple[int, ...] | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    update_seconds: float | None = None

    @property
    def input_items(self) -> int:
        return prod(self.input)

    @property
    def output_items(self) -> int:
        return prod(self.output)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The sizes of the kernel; empty if there is none."""
        return self.weight[2:]

    @property
    def matrix_items(self) -> int:
        """The number of items of the weights, without bias."""
        return prod(self.weight) if self.weight else 0

    @property
    def weight_items(self) -> int:
        """The number of all trainable items."""
        return self.matrix_items + self.vector_items

    @property
    def forward_flops(self) -> int:
        """The operations of the forward pass for one sample. A multiplication with an addition counts as two."""
        places = prod(self.output[1:])
        if self.kind == "CONV":
            return 2 * self.matrix_items * places
        if self.kind == "FC":
            return 2 * self.matrix_items
        if self.kind in ("MPOOL", "APOOL"):
            return self.output_items * prod(self.kernel)
        if self.kind == "BNORM":
            return 4 * self.input_items
        return self.output_items if self.kind in ("RELU", "ADD", "LRN", "SOFTMAX") else 0


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Layers in an order in which each follows the layers that it reads, and the training data set.

    `seconds_per_sample` is the time of all layers in all three passes, if only that was measured. `notes` lists
    oddities that were found while reading.
    """

    name: str
    samples: int
    layers: tuple[Layer, ...]
    dataset: str = ""
    seconds_per_sample: float | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the layers that each layer reads; empty for a layer that reads the data."""
        return tuple(
            layer.after if layer.after is not None else (() if index == 0 else (index - 1,))
            for index, layer in enumerate(self.layers)
        )

    @property
    def is_timed(self) -> bool:
        """Whether any layer has a time."""
        return any(layer.forward_seconds is not None for layer in self.layers)

    @cached_property
    def weight_items(self) -> int:
        return sum(layer.weight_items for layer in self.layers)

    @cached_property
    def crossing_items(self) -> tuple[int, ...]:
        """The items per sample that cross each position, from earlier layers to later ones: a cut there sends them.

        In a chain this is the output of the layer. If there are parallel branches, each output counts once.
        """
        last_use = list(range(len(self.layers)))
        for index, sources in enumerate(self.inputs):
            for source in sources:
                last_use[source] = max(last_use[source], index)
        return tuple(
            sum(self.layers[source].output_items for source in range(cut + 1) if last_use[source] > cut)
            for cut in range(len(self.layers))
        )


def checked(network: Network) -> Network:
    """Return the network. Raises OracleError for a layer that is impossible or does not fit its inputs."""
    if network.samples < 1:
        raise OracleError(f"{network.name} is trained on {network.samples} samples: give 1 or more")
    if not network.layers:
        raise OracleError(f"{network.name} has no layers")
    for index, layer in enumerate(network.layers):
        where = f"layer {index} ({layer.name}) of {network.name}"
        _check_layer(layer, where)
        _check_chain(network, index, where)
    return network


def kind_of(name: str) -> str:
    """Return the kind of a layer: the first kind that its name contains."""
    upper = name.upper()
    return min((kind for kind in KINDS if kind in upper), key=upper.index, default=OTHER)


def _check_layer(layer: Layer, where: str) -> None:
    for what, shape in (("input", layer.input), ("output", layer.output)):
        if not shape or min(shape) < 1:
            raise OracleError(f"{where} has the {what} {_text(shape)}: every size must be 1 or more")
    times = (layer.forward_seconds, layer.backward_seconds, layer.update_seconds)
    if any(time is not None and time < 0 for time in times):
        raise OracleError(f"{where} has a negative time: {times}")
    if layer.kind not in ("CONV", "FC"):
        return
    if len(layer.weight) < 2 or min(layer.weight) < 1:
        raise OracleError(f"{where} has the weights {_text(layer.weight)}: they must be channels x filters x kernel")
    if layer.output[0] != layer.weight[1]:
        raise OracleError(f"{where} has {layer.weight[1]} filters, but {layer.output[0]} channels of output")
    if layer.kind == "CONV" and layer.input[0] % layer.weight[0]:
        raise OracleError(f"{where} has weights for {layer.weight[0]} channels, but {layer.input[0]} of input")
    if layer.kind == "FC" and layer.input_items != layer.matrix_items // layer.weight[1]:
        raise OracleError(
            f"{where} has weights for {layer.matrix_items // layer.weight[1]} items, but {layer.input_items} of input"
        )


def _check_chain(network: Network, index: int, where: str) -> None:
    layer, sources = network.layers[index], network.inputs[index]
    if any(not 0 <= source < index for source in sources):
        raise OracleError(f"{where} comes after layers {sources}: they must be before it")
    shapes = [network.layers[source].output for source in sources]
    fed = fed_by(layer.kind, shapes) if shapes else layer.input
    if fed is None or prod(fed) != layer.input_items or (layer.kind != "FC" and fed != layer.input):
        given = [network.layers[source] for source in sources]
        names = ", ".join(f"{before.name} gives {_text(before.output)}" for before in given)
        raise OracleError(f"{where} does not chain: it takes {_text(layer.input)}, but {names}")
    if layer.kind in ELEMENTWISE and layer.output != layer.input:
        raise OracleError(
            f"{where} makes {_text(layer.output)} of {_text(layer.input)}: a layer of this kind keeps the shape"
        )


def fed_by(kind: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of the input that outputs of these shapes form together; None if they do not fit."""
    first = shapes[0]
    if len(shapes) == 1:
        return first
    if kind == "CONCAT" and all(shape[1:] == first[1:] for shape in shapes):
        return (sum(shape[0] for shape in shapes), *first[1:])
    return first if kind != "CONCAT" and all(shape == first for shape in shapes) else None


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "none"
