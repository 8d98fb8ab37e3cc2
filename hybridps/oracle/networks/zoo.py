"""Well-known networks, built from their published architectures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridps.errors import OracleError
from hybridps.oracle.networks.network import Layer, Network, checked

IMAGENET_SAMPLES = 1_281_167
COSMOFLOW_SAMPLES = 1584
"""Of the published layer table."""

Shape = tuple[int, ...]


class Builder:
    """Adds layers one by one; `at` is the position of the last one, which the next one reads."""

    def __init__(self, shape: Shape) -> None:
        self.layers: list[Layer] = []
        self._data = shape
        self.at = -1

    def shape(self, at: int | None = None) -> Shape:
        at = self.at if at is None else at
        return self._data if at < 0 else self.layers[at].output

    def add(self, name: str, kind: str, output: Shape, weight: Shape = (), vector_items: int = 0) -> int:
        after = None if self.at == len(self.layers) - 1 else (self.at,)
        layer = Layer(
            name=name,
            kind=kind,
            input=self.shape(),
            output=output,
            weight=weight,
            vector_items=vector_items,
            after=after,
        )
        return self._append(layer)

    def join(self, name: str, kind: str, sources: Sequence[int]) -> int:
        """ADD or CONCAT of the outputs of several layers."""
        channels = [self.shape(source)[0] for source in sources]
        shape = (sum(channels) if kind == "CONCAT" else channels[0], *self.shape(sources[0])[1:])
        return self._append(Layer(name=name, kind=kind, input=shape, output=shape, after=tuple(sources)))

    def conv(self, name: str, filters: int, kernel: int, stride: int = 1, pad: int = 0, *, bias: bool = True) -> int:
        channels, *places = self.shape()
        output = (filters, *((size + 2 * pad - kernel) // stride + 1 for size in places))
        weight = (channels, filters, *(kernel for _ in places))
        return self.add(name, "CONV", output, weight, filters if bias else 0)

    def pool(self, name: str, kind: str, kernel: int, stride: int, pad: int = 0, *, ceil: bool = False) -> int:
        channels, *places = self.shape()
        round_up = stride - 1 if ceil else 0
        output = (channels, *((size + 2 * pad - kernel + round_up) // stride + 1 for size in places))
        return self.add(name, kind, output, (0, 0, *(kernel for _ in places)))

    def relu(self, name: str) -> int:
        return self.add(name, "RELU", self.shape())

    def norm(self, name: str) -> int:
        """BatchNorm: a scale and a shift for each channel."""
        return self.add(name, "BNORM", self.shape(), (), 2 * self.shape()[0])

    def full(self, name: str, outputs: int) -> int:
        """Fully connected, with bias, on all items of the input."""
        shape = self.shape()
        ones = (1,) * (len(shape) - 1)
        return self.add(name, "FC", (outputs, *ones), (shape[0], outputs, *shape[1:]), outputs)

    def _append(self, layer: Layer) -> int:
        self.layers.append(layer)
        self.at = len(self.layers) - 1
        return self.at

    def network(self, name: str, dataset: str = "ImageNet", samples: int = IMAGENET_SAMPLES) -> Network:
        return checked(Network(name=name, dataset=dataset, samples=samples, layers=tuple(self.layers)))


def alexnet() -> Network:
    """Krizhevsky et al., 2012, in one tower (no groups), as ParaDL's table has it."""
    net = Builder((3, 227, 227))
    for index, (filters, kernel, stride, pad, pooled) in enumerate(
        [
            (96, 11, 4, 0, True),
            (256, 5, 1, 2, True),
            (384, 3, 1, 1, False),
            (384, 3, 1, 1, False),
            (256, 3, 1, 1, True),
        ],
        1,
    ):
        net.conv(f"CONV{index}", filters, kernel, stride, pad)
        net.relu(f"RELU{index}")
        if pooled:
            net.pool(f"MPOOL{index}", "MPOOL", 3, 2)
    _classifier(net, 6)
    return net.network("AlexNet")


def vgg16() -> Network:
    """Simonyan and Zisserman, 2014, configuration D."""
    net = Builder((3, 224, 224))
    for block, (filters, depth) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], 1):
        for index in range(1, depth + 1):
            net.conv(f"CONV{block}_{index}", filters, 3, 1, 1)
            net.relu(f"RELU{block}_{index}")
        net.pool(f"MPOOL{block}", "MPOOL", 2, 2)
    _classifier(net, 6)
    return net.network("VGG16")


def resnet50() -> Network:
    return _resnet("ResNet50", (3, 4, 6, 3))


def resnet152() -> Network:
    return _resnet("ResNet152", (3, 8, 36, 3))


def googlenet() -> Network:
    """Szegedy et al., 2014, table 1, without the auxiliary classifiers."""
    net = Builder((3, 224, 224))
    _conv_relu(net, "CONV1", 64, 7, 2, 3)
    net.pool("MPOOL1", "MPOOL", 3, 2, ceil=True)
    net.add("LRN1", "LRN", net.shape())
    _conv_relu(net, "CONV2_reduce", 64, 1)
    _conv_relu(net, "CONV2", 192, 3, 1, 1)
    net.add("LRN2", "LRN", net.shape())
    net.pool("MPOOL2", "MPOOL", 3, 2, ceil=True)
    for name, *widths in INCEPTIONS:
        if name in ("4a", "5a"):
            net.pool(f"MPOOL{name}", "MPOOL", 3, 2, ceil=True)
        _inception(net, str(name), *(int(width) for width in widths))
    net.pool("APOOL", "APOOL", 7, 1)
    net.add("DROPOUT", "DROPOUT", net.shape())
    net.full("FC", 1000)
    return net.network("GoogleNet")


INCEPTIONS = (
    ("3a", 64, 96, 128, 16, 32, 32),
    ("3b", 128, 128, 192, 32, 96, 64),
    ("4a", 192, 96, 208, 16, 48, 64),
    ("4b", 160, 112, 224, 24, 64, 64),
    ("4c", 128, 128, 256, 24, 64, 64),
    ("4d", 112, 144, 288, 32, 64, 64),
    ("4e", 256, 160, 320, 32, 128, 128),
    ("5a", 256, 160, 320, 32, 128, 128),
    ("5b", 384, 192, 384, 48, 128, 128),
)
"""Filters of each module: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; behind the pool."""


def cosmoflow() -> Network:
    """CosmoFlow on volumes of 512^3 with 4 channels, as ParaDL's table COSMOFLOW.net has it: no padding."""
    return _cosmoflow(512, strided=3, pad=False)


def cosmoflow_256() -> Network:
    """CosmoFlow on volumes of 256^3, as ParaDL's table COSMOFLOW.net_256 has it: padded, another layer strided."""
    return _cosmoflow(256, strided=4, pad=True)


NETWORKS: dict[str, Callable[[], Network]] = {
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet50": resnet50,
    "resnet152": resnet152,
    "googlenet": googlenet,
    "cosmoflow": cosmoflow,
    "cosmoflow256": cosmoflow_256,
}


def built_in(name: str) -> Network:
    """A network by its name; case, - and _ are ignored. Raises OracleError, which lists the names."""
    known = name.lower().replace("-", "").replace("_", "")
    if known not in NETWORKS:
        raise OracleError(f"unknown network {name!r}: use one of {', '.join(NETWORKS)}")
    return NETWORKS[known]()


def _classifier(net: Builder, first: int) -> None:
    for index, outputs in enumerate((4096, 4096, 1000), first):
        net.full(f"FC{index}", outputs)
        if outputs != 1000:
            net.relu(f"RELU{index}")
            net.add(f"DROPOUT{index}", "DROPOUT", net.shape())


def _resnet(name: str, depths: Sequence[int]) -> Network:
    """He et al., 2015: bottlenecks, with the stride in the 1x1 convolution as the paper has it."""
    net = Builder((3, 224, 224))
    _conv_norm(net, "1", 64, 7, 2, 3)
    net.relu("RELU_1")
    net.pool("MPOOL", "MPOOL", 3, 2, 1)
    for stage, depth in enumerate(depths, 2):
        for block in range(depth):
            _bottleneck(
                net, f"{stage}{_letters(block)}", 64 << (stage - 2), 2 if stage > 2 and block == 0 else 1, block == 0
            )
    net.pool("APOOL", "APOOL", 7, 1)
    net.full("FC", 1000)
    return net.network(name)


def _bottleneck(net: Builder, name: str, width: int, stride: int, projected: bool) -> None:
    start = net.at
    _conv_norm(net, f"{name}1", width, 1, stride)
    net.relu(f"RELU_{name}1")
    _conv_norm(net, f"{name}2", width, 3, 1, 1)
    net.relu(f"RELU_{name}2")
    main = shortcut = _conv_norm(net, f"{name}3", 4 * width, 1)
    if projected:
        net.at = start
        shortcut = _conv_norm(net, f"{name}0", 4 * width, 1, stride)
    net.join(f"ADD_{name}", "ADD", (main, shortcut if projected else start))
    net.relu(f"RELU_{name}3")


def _conv_norm(net: Builder, name: str, filters: int, kernel: int, stride: int = 1, pad: int = 0) -> int:
    net.conv(f"CONV_{name}", filters, kernel, stride, pad, bias=False)
    return net.norm(f"BNORM_{name}")


def _conv_relu(net: Builder, name: str, filters: int, kernel: int, stride: int = 1, pad: int = 0) -> int:
    net.conv(name, filters, kernel, stride, pad)
    return net.relu(f"RELU_{name}")


def _inception(
    net: Builder, name: str, ones: int, reduce3: int, threes: int, reduce5: int, fives: int, pooled: int
) -> None:
    start = net.at
    ends = [_conv_relu(net, f"CONV{name}_1x1", ones, 1)]
    for kernel, reduced, filters in ((3, reduce3, threes), (5, reduce5, fives)):
        net.at = start
        _conv_relu(net, f"CONV{name}_{kernel}x{kernel}_reduce", reduced, 1)
        ends.append(_conv_relu(net, f"CONV{name}_{kernel}x{kernel}", filters, kernel, 1, kernel // 2))
    net.at = start
    net.pool(f"MPOOL{name}_side", "MPOOL", 3, 1, 1)
    ends.append(_conv_relu(net, f"CONV{name}_pool", pooled, 1))
    net.join(f"CONCAT{name}", "CONCAT", ends)


def _cosmoflow(size: int, strided: int, *, pad: bool) -> Network:
    """Seven 3-D convolutions, six of them pooled, and three fully connected layers."""
    net = Builder((4, size, size, size))
    for index, filters in enumerate((16, 32, 64, 128, 256, 256, 128), 1):
        kernel = 3 if index < 5 else 2
        channels, *places = net.shape()
        stride = 2 if index == strided else 1
        same = pad and index < 7
        output = (filters, *(-(-place // stride) if same else (place - kernel) // stride + 1 for place in places))
        net.add(f"CONV_{index}", "CONV", output, (channels, filters, *(kernel for _ in places)))
        net.relu(f"RELU_{index}")
        if index < 7:
            net.pool(f"APOOL_{index}", "APOOL", 2, 2)
    for index, outputs in enumerate((2048, 256, 4), 1):
        channels, *places = net.shape()
        net.add(f"FC_{index}", "FC", (outputs, 1, 1, 1), (channels, outputs, *places))
        if index < 3:
            net.relu(f"RELU_FC_{index}")
    return net.network("CosmoFlow", "CosmoFlow", COSMOFLOW_SAMPLES)


def _letters(number: int) -> str:
    """a to z, then aa, ab ..."""
    first, last = divmod(number, 26)
    return (chr(96 + first) if first else "") + chr(97 + last)
