"""Networks read from Gluon and from symbols: their parameters are those that MXNet trains."""

from __future__ import annotations

from pathlib import Path

import pytest

mx = pytest.importorskip("mxnet")

from mxnet.gluon import nn  # noqa: E402
from mxnet.gluon.model_zoo import vision  # noqa: E402

from hybridps.calibrate.mxnet_networks import from_block, from_file, from_symbol, from_zoo  # noqa: E402
from hybridps.errors import OracleError  # noqa: E402
from hybridps.oracle.networks import (  # noqa: E402
    built_in,  # noqa: E402
    read_network,
    write_network,
)

pytestmark = pytest.mark.mxnet
IMAGE = (3, 224, 224)


def trained_items(block, shape: tuple[int, ...]) -> int:
    block.initialize()
    block(mx.nd.zeros((1, *shape)))
    return sum(array.data().size for array in block.collect_params().values() if array.grad_req != "null")


@pytest.mark.parametrize(
    "name", ["resnet18_v1", "resnet18_v2", "mobilenetv2_0.25", "squeezenet1.1", "densenet121", "alexnet"]
)
def test_the_model_zoo_has_the_parameters_that_are_trained(name: str) -> None:
    assert from_zoo(name, IMAGE).weight_items == trained_items(vision.get_model(name), IMAGE)


def test_gluon_s_resnet_is_ours_but_for_the_biases_of_its_1x1_convolutions() -> None:
    theirs, ours = from_zoo("resnet50_v1", IMAGE), built_in("resnet50")
    assert len(theirs.layers) == len(ours.layers)
    assert sum(one.forward_flops for one in theirs.layers) == sum(one.forward_flops for one in ours.layers)
    assert sum(one.matrix_items for one in theirs.layers) == sum(one.matrix_items for one in ours.layers)


def test_a_symbol_file_is_the_block_it_was_exported_from(tmp_path: Path) -> None:
    block = nn.HybridSequential()
    block.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(), nn.Dense(10))
    block.initialize()
    block.hybridize()
    items = trained_items(block, (1, 10, 10))
    block.export(str(tmp_path / "small"))
    network = from_file(tmp_path / "small-symbol.json", (1, 10, 10))
    assert [one.kind for one in network.layers] == ["CONV", "BNORM", "RELU", "MPOOL", "FC"]
    assert network.weight_items == items == 4 * 9 + 4 + 2 * 4 + 4 * 4 * 4 * 10 + 10
    write_network(network, tmp_path / "network.json")
    assert read_network(tmp_path / "network.json") == network
    assert network.layers == from_block(block, (1, 10, 10)).layers


def test_a_symbol_of_module_with_a_loss() -> None:
    hidden = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16), act_type="tanh")
    loss = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=4), name="softmax")
    network = from_symbol(loss, (8,), name="perceptron")
    assert network.weight_items == 8 * 16 + 16 + 16 * 4 + 4


def test_the_casts_of_mixed_precision_are_no_layers() -> None:
    """MXNet's AMP puts them before an operator's inputs, weights too. MXNet leaves them out of a symbol's JSON."""

    def network(cast, casts):
        data, weight = mx.sym.var("data"), mx.sym.var("conv_weight")
        conv = mx.sym.Convolution(cast(data), cast(weight), kernel=(3, 3), num_filter=4, no_bias=True, name="conv")
        both = casts(conv, mx.sym.Activation(conv, act_type="relu", name="relu"))
        return from_symbol(mx.sym.elemwise_add(both[0], both[1], name="sum"), (3, 8, 8), name="small")

    mixed = network(
        lambda each: mx.sym.amp_cast(each, dtype="float16"), lambda *both: mx.sym.amp_multicast(*both, num_outputs=2)
    )
    assert mixed == network(lambda each: each, lambda *both: both)
    assert [layer.kind for layer in mixed.layers] == ["CONV", "RELU", "ADD"]


def test_branches_are_found() -> None:
    network = from_zoo("resnet18_v1", IMAGE)
    added = [index for index, one in enumerate(network.layers) if one.kind == "ADD"]
    assert len(added) == 8
    assert all(len(network.inputs[index]) == 2 for index in added)


def test_what_is_no_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="unknown network 'resnet51_v1': the model zoo has alexnet, "):
        from_zoo("resnet51_v1", IMAGE)
    with pytest.raises(OracleError, match="does not take samples of"):
        from_zoo("resnet18_v1", (3, 2))
    path = tmp_path / "no-symbol.json"
    path.write_text('{"arg_nodes": 3}')
    with pytest.raises(OracleError, match="is not a symbol"):
        from_file(path, IMAGE)
