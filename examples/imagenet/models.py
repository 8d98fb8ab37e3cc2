"""Networks by name: all of Gluon's model zoo, and small ones for small images."""

from __future__ import annotations

import re

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn


class NetworkError(Exception):
    """There is no such network. The message lists the valid names."""


class InitialWeights(mx.init.Initializer):
    """Convolutions as in He et al. (2015); small dense layers, so that the loss begins near that of guessing."""

    def _init_weight(self, name, array):
        if array.ndim == 2:
            mx.random.normal(0, 0.01, out=array)
        else:
            mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)._init_weight(name, array)


class ResidualUnit(nn.HybridBlock):
    """Two 3x3 convolutions beside a shortcut (He et al., 2016, figure 2)."""

    def __init__(self, channels: int, stride: int, project: bool, **kwargs) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(channels, 3, stride, 1, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.Conv2D(channels, 3, 1, 1, use_bias=False),
                nn.BatchNorm(),
            )
            self.shortcut = nn.HybridSequential()
            if project:
                self.shortcut.add(nn.Conv2D(channels, 1, stride, use_bias=False), nn.BatchNorm())

    def hybrid_forward(self, F, x):  # noqa: N803, MXNet's name
        return F.relu(self.body(x) + self.shortcut(x))


def cifar_resnet(depth: int, classes: int, width: int) -> nn.HybridSequential:
    """Return three stages of (depth - 2) / 6 units for images of 32x32 (He et al., 2016, section 4.2)."""
    if depth < 8 or (depth - 2) % 6:
        raise NetworkError(f"cifar_resnet{depth}: the depth must be 6 n + 2: 8, 14, 20, 32, 44, 56")
    net = nn.HybridSequential(prefix="cifar_resnet_")
    with net.name_scope():
        net.add(nn.Conv2D(width, 3, 1, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        for stage in range(3):
            for unit in range((depth - 2) // 6):
                first = stage > 0 and unit == 0
                net.add(ResidualUnit(width << stage, 2 if first else 1, first))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net


def digits_cnn(classes: int, width: int) -> nn.HybridSequential:
    """Return three convolutions and a dense layer for images of 8x8."""
    net = nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        for channels, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
            net.add(nn.Conv2D(channels, 3, stride, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Flatten(), nn.Dense(classes))
    return net


def has_dropout(net: gluon.Block) -> bool:
    """Return whether a forward pass in training draws random numbers."""
    return isinstance(net, nn.Dropout) or any(has_dropout(child) for child in net._children.values())


def make(name: str, classes: int, width: int = 16) -> gluon.HybridBlock:
    """Return the network of that name, not initialised. `width` applies only to the small networks.

    Raises NetworkError with the valid names.
    """
    if name == "digits":
        return digits_cnn(classes, width)
    if match := re.fullmatch(r"cifar_resnet(\d+)", name):
        return cifar_resnet(int(match[1]), classes, width)
    try:
        return gluon.model_zoo.vision.get_model(name, classes=classes)
    except ValueError as error:
        zoo = sorted(re.findall(r"[a-z][a-z0-9_.]+", str(error).partition("options are")[2]))
        raise NetworkError(
            f"--network {name}: expected one of {', '.join(['digits', 'cifar_resnet20', *zoo])}"
        ) from None
