"""Reads a network's layers from the network itself: a Gluon block, a symbol, or a name of the model zoo."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from math import prod
from pathlib import Path
from typing import Any

import hybridps.kvstore  # noqa: F401  # isort: skip  # before MXNet: it refuses a NumPy that MXNet cannot run with
import mxnet as mx

from hybridps.errors import OracleError
from hybridps.oracle.networks import OTHER, Layer, Network, checked, fed_by

Shape = tuple[int, ...]

OPERATORS = {
    "CONV": ("Convolution",),
    "FC": ("FullyConnected",),
    "RELU": ("Activation", "LeakyReLU", "relu", "sigmoid", "tanh"),
    "BNORM": ("BatchNorm",),
    "ADD": ("elemwise_add", "_plus", "_Plus", "broadcast_add"),
    "CONCAT": ("Concat",),
    "DROPOUT": ("Dropout",),
    "FLATTEN": ("Flatten",),
    "LRN": ("LRN",),
    "SOFTMAX": ("softmax", "log_softmax", "SoftmaxOutput"),
}
"""MXNet's operators by kind of layer. Every activation costs as much as ReLU. Other operators count for their items
only, not for operations."""

IMAGENET_SAMPLES = 1_281_167


def from_zoo(name: str, shape: Shape) -> Network:
    """Read a network of Gluon's model zoo. Raises OracleError, with the known names, for an unknown name."""
    from mxnet.gluon.model_zoo import vision

    try:
        block = vision.get_model(name)
    except ValueError as error:
        known = ", ".join(line.strip() for line in str(error).splitlines()[1:])
        raise OracleError(f"unknown network {name!r}: the model zoo has {known}") from None
    return from_block(block, shape, name=name)


def from_block(block: Any, shape: Shape, *, name: str | None = None) -> Network:
    """Read a hybridizable Gluon block, for samples of `shape` (channels, height, width)."""
    frozen = {parameter.name for parameter in block.collect_params().values() if parameter.grad_req == "null"}
    return from_symbol(block(mx.sym.var("data")), shape, name=name or block.name, frozen=frozen)


def from_file(path: Path, shape: Shape) -> Network:
    """Read a symbol file, as `HybridBlock.export` and `Symbol.save` write it."""
    try:
        symbol = mx.sym.load(str(path))
    except mx.MXNetError as error:
        raise OracleError(f"{path} is not a symbol: {str(error).splitlines()[0]}") from None
    return from_symbol(symbol, shape, name=path.name.removesuffix(".json").removesuffix("-symbol"))


def from_symbol(symbol: Any, shape: Shape, *, name: str, frozen: Set[str] = frozenset()) -> Network:
    """Read a symbol whose input is called data. `frozen`: the names of variables that are not trained.

    Raises OracleError if shapes cannot be inferred, or if a layer does not fit its inputs.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    shapes = _shapes(symbol, shape, name)
    trained = set(symbol.list_arguments()) - {"data"} - frozen
    positions: dict[int, int] = {}
    layers: list[Layer] = []
    for number, node in enumerate(nodes):
        if node["op"] == "null":
            continue
        numbers = [at for at, *_ in node["inputs"]]
        sources = tuple(dict.fromkeys(positions[at] for at in numbers if at in positions))
        given = [layers[source].output for source in sources]
        kind = _kind(node)
        fed = fed_by(kind, given) if given else shape
        if fed is None:
            sources, fed, kind = sources[:1], given[0], OTHER
        variables = {nodes[at]["name"] for at in numbers if nodes[at]["op"] == "null"} & trained
        trained -= variables
        weight, vector_items = _weights(node, kind, {variable: shapes[variable] for variable in variables}, fed)
        output = shapes.get(f"{node['name']}_output") or shapes[f"{node['name']}_output0"]
        layer = Layer(
            name=node["name"],
            kind=kind,
            input=fed,
            output=tuple(output[1:]) or (1,),
            weight=weight,
            vector_items=vector_items,
            after=None if sources == ((len(layers) - 1,) if layers else ()) else sources,
        )
        positions[number] = len(layers)
        layers.append(layer)
    return checked(Network(name=name, dataset="ImageNet", samples=IMAGENET_SAMPLES, layers=tuple(layers)))


def _kind(node: Mapping[str, Any]) -> str:
    if node["op"] == "Pooling":
        return "APOOL" if node["attrs"].get("pool_type") == "avg" else "MPOOL"
    return next((kind for kind, operators in OPERATORS.items() if node["op"] in operators), OTHER)


def _weights(node: Mapping[str, Any], kind: str, parameters: Mapping[str, Shape], fed: Shape) -> tuple[Shape, int]:
    """Return the shape of a layer's weights, channels first, and the number of its other trainable items."""
    attributes = node.get("attrs", {})
    if kind in ("MPOOL", "APOOL"):
        whole = attributes.get("global_pool", "False") in ("True", "1")
        return (0, 0, *(fed[1:] if whole else map(int, re.findall(r"\d+", attributes["kernel"])))), 0
    if kind == "SOFTMAX":
        return (), 0
    if kind == "BNORM" and attributes.get("fix_gamma", "True") in ("True", "1"):
        parameters = {name: shape for name, shape in parameters.items() if not name.endswith("gamma")}
    weight = next((shape for name, shape in parameters.items() if name.endswith("weight")), None)
    others = sum(prod(shape) for shape in parameters.values())
    if kind not in ("CONV", "FC") or weight is None:
        return (), others
    filters, channels, *kernel = weight
    return (channels, filters, *kernel), others - prod(weight)


def _shapes(symbol: Any, shape: Shape, name: str) -> dict[str, Shape]:
    """Return the shapes of all variables and outputs, by MXNet's names, for a batch of one."""
    internals = symbol.get_internals()
    try:
        _, outputs, _ = internals.infer_shape(data=(1, *shape))
    except mx.MXNetError as error:
        raise OracleError(f"{name} does not take samples of {shape}: {str(error).splitlines()[-1]}") from None
    return dict(zip(internals.list_outputs(), outputs, strict=True))
