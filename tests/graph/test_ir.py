"""A graph is checked when it is made, cannot be changed, and knows every shape."""

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import fedtiny
from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.export import c_program, onnx_forms, torch_model
from fedtiny.graph import arithmetic
from fedtiny.graph.ir import LIMITS, UNTRUSTED, Graph, Kind, Limits, Node
from fedtiny.graph.operations import NATIVE, OPERATIONS, lacking, native_lacks
from fedtiny.graph.trace import trace

from .building import Builder

IMAGE = Node(Kind.INPUT, channels=2, size=(8, 6))


def small():
    """A convolution, batch norm, a sum of two pools, and a head."""
    net = Builder((2, 8, 6))
    x = net.relu(net.batch_norm("bn", net.convolution("conv", 0, 4, kernel=(3, 3), bias=True)))
    pooled = net.add(net.max_pool(x, (2, 2), (2, 2)), net.mean_pool(x, (2, 2), (2, 2)))
    net.linear("fc", net.dropout(net.flatten(pooled)), 3)
    return net


def test_a_graph_knows_the_shape_of_everything():
    graph = small().graph
    planes = [(2, 8, 6), *[(4, 6, 4)] * 3, *[(4, 3, 2)] * 3]
    assert graph.shapes == (*planes, (24, 1, 1), (24, 1, 1), (3, 1, 1))
    assert graph.weight_shapes == {"conv": (4, 2, 3, 3), "fc": (3, 24)}
    norm = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (4,))
    assert graph.tensors == {
        **{"conv.weight": (4, 2, 3, 3), "conv.bias": (4,)},
        **{f"bn.{part}": shape for part, shape in norm.items()},
        **{"fc.weight": (3, 24), "fc.bias": (3,)},
    }
    assert graph.largest_read == 2 * 9 * 24
    assert list(graph.layers) == [1, 9]


def joined(*ways):
    """A sum of what convolutions make of a stem, each way a list of their names."""
    net = Builder((2, 8, 6))
    stem, ends = net.relu(net.convolution("stem", 0, 4, kernel=(1, 1))), []
    for names in ways:
        end = stem
        for name in names:
            end = net.batch_norm(f"{name}_bn", net.convolution(name, end, 4, kernel=(1, 1)))
        ends.append(end)
    net.linear("fc", net.flatten(net.relu(net.add(*ends))), 3)
    return net.graph


@pytest.mark.parametrize(
    ("ways", "projections"),
    [
        ((["a", "b"], ["short"]), {"short"}),
        ((["short"], ["a", "b", "c"]), {"short"}),
        ((["a", "b"], []), set()),  # the shortcut has no layer
        ((["a"], ["b"]), set()),  # as long as each other
        ((["a", "b"], ["c", "d"]), set()),
    ],
)
def test_a_projection_is_a_layer_beside_a_longer_way(ways, projections):
    assert joined(*ways).projections == projections


@pytest.mark.parametrize(
    ("model", "projections"),
    [
        ("resnet18", {f"layer{stage}.0.shortcut.0" for stage in (2, 3, 4)}),
        ("mobilenetv2", set()),
        ("squeezenet", set()),
        ("vgg11_small", set()),
        ("vit_tiny", set()),
    ],
)
def test_the_projections_of_known_networks(model, projections):
    graph = trace(models.build(model, (3, 32, 32), 10, width=8), (3, 32, 32))
    assert graph.projections == projections


@pytest.mark.parametrize(
    ("model", "left_out"),
    [
        ("resnet18", {"fc"}),
        ("vgg11", {"head.2", "head.5", "head.8"}),
        ("lenet5", {"conv1", "conv2", "fc1", "fc2", "fc3"}),
    ],
)
def test_batch_norm_follows_convolutions_of_known_networks(model, left_out):
    graph = trace(models.build(model, (3, 32, 32), 10), (3, 32, 32))
    assert {*graph.weight_shapes} - graph.normalized == left_out


def test_a_layer_that_another_step_reads_too_is_not_normalized():
    net = Builder((2, 8, 6))
    both = net.convolution("both", 0, 4, kernel=(1, 1))
    alone = net.convolution("alone", 0, 4, kernel=(1, 1))
    sums = net.add(net.batch_norm("b1", both), both)
    net.linear("fc", net.flatten(net.add(sums, net.batch_norm("b2", alone))), 3)
    assert net.graph.normalized == {"alone"}


def test_a_layer_that_runs_twice_is_normalized_if_each_run_is():
    def twice(*, both):
        net = Builder((2, 8, 6))
        first = net.batch_norm("b1", net.convolution("again", 0, 2, kernel=(1, 1)))
        second = net.convolution("again", first, 2, kernel=(1, 1))
        net.linear("fc", net.flatten(net.batch_norm("b2", second) if both else second), 3)
        return net.graph.normalized

    assert twice(both=True) == {"again"}
    assert twice(both=False) == set()


def test_a_graph_cannot_be_changed():
    graph = small().graph
    with pytest.raises(FrozenInstanceError):
        graph.nodes = ()
    with pytest.raises(FrozenInstanceError):
        graph.nodes[1].channels = 5
    with pytest.raises(TypeError):
        graph.nodes[1] = IMAGE
    assert Graph(list(graph.nodes)) == graph
    assert hash(Graph(list(graph.nodes))) == hash(graph)


def test_what_leads_nowhere_is_known():
    net = small()
    net.relu(0)
    net.linear("other", net.flatten(0), 2)
    graph = net.graph
    assert graph.needed == {0, len(graph.nodes) - 2, len(graph.nodes) - 1}
    with pytest.raises(ModelError, match="does not need step 1"):
        graph.check_all_needed()
    small().graph.check_all_needed()


def test_a_value_is_held_until_its_last_reader():
    assert small().graph.last_reads == {0: 1, 1: 2, 2: 3, 3: 5, 4: 6, 5: 6, 6: 7, 7: 8, 8: 9, 9: 10}


MISFITS = {
    "larger than what it reads": lambda n: n.convolution("c", 0, 4, kernel=(9, 9)),
    "must read 1 steps before it": lambda n: n.relu(5),
    "must read 2 steps before it": lambda n: n.node(Kind.ADD, 0),
    "different shapes": lambda n: n.add(0, n.convolution("c", 0, 2, kernel=(3, 3))),
    "one logit a class": lambda n: n.relu(0),
    "padding that its kernel can bridge": lambda n: n.max_pool(0, (2, 2), (2, 2), (2, 2)),
    "kernels and strides of 1 to 4096": lambda n: n.mean_pool(0, (2, 2), (0, 1)),
    "is out of place": lambda n: n.node(Kind.INPUT),
    "gives 0 values": lambda n: n.adaptive_pool(0, (0, 1)),
    "at least one layer": lambda n: n.flatten(0),
    "share its channels out among 3": lambda n: n.convolution("c", 0, 6, groups=3),
    "output padding that is not below": lambda n: n.node(
        Kind.TRANSPOSED_CONVOLUTION, 0, name="c", channels=2, output_padding=(1, 0)
    ),
    "no ceil mode": lambda n: n.convolution("c", 0, 2, ceil=True),
    "no dilation and no uneven": lambda n: n.mean_pool(0, (2, 2), (1, 1), padding_end=(1, 1)),
    "share 2 channels out among 4": lambda n: n.node(Kind.GROUP_NORM, 0, name="c", groups=4),
    "neither the same shape nor": lambda n: n.node(
        Kind.MULTIPLY, 0, n.convolution("c", 0, 1, kernel=(8, 6))
    ),
    "no such axis": lambda n: n.node(Kind.SOFTMAX, 0, axis=3),
    "differ along another axis": lambda n: n.node(Kind.CONCAT, 0, n.max_pool(0, (2, 2), (2, 2))),
    "reaches beyond": lambda n: n.node(Kind.SLICE, 0, start=1, channels=2),
    "another number of values than it reads": lambda n: n.node(
        Kind.RESHAPE, 0, channels=2, size=(8, 5)
    ),
    "another number of values than it holds": lambda n: n.node(
        Kind.PARAMETER, name="c", shape=(2, 3), channels=2, size=(2, 2)
    ),
    "an order of its three axes": lambda n: n.node(Kind.PERMUTE, 0, order=(0, 1, 1)),
    "by whole numbers": lambda n: n.node(Kind.UPSAMPLE, 0, size=(12, 6)),
    "matrices that do not fit": lambda n: n.node(Kind.MATMUL, 0, 0),
    "a name of its own": lambda n: n.linear("", n.flatten(0), 3),
    "more than 1073741824 weights": lambda n: n.linear("c", n.flatten(0), 2**25),
    "gives 2147483648 values": lambda n: n.linear("c", n.flatten(0), 2**31),
}


@pytest.mark.parametrize("sentence", MISFITS)
def test_what_does_not_fit_is_refused(sentence):
    net = Builder((2, 8, 6))
    MISFITS[sentence](net)
    with pytest.raises(ModelError, match=re.escape(sentence)):
        net.graph  # noqa: B018


def test_a_layer_that_runs_twice_is_one_parameter_with_two_uses():
    net = Builder((2, 6, 6))
    x = net.convolution("conv", net.convolution("conv", 0, 2, kernel=(3, 3)), 2, kernel=(3, 3))
    net.linear("fc", net.flatten(x), 2)
    assert net.graph.tensors["conv.weight"] == (2, 2, 3, 3)
    assert net.graph.uses == {"conv": 16 + 4, "fc": 1}
    assert native_lacks(net.graph.nodes) == ""


def test_two_layers_of_one_name_are_refused():
    net = Builder((2, 1, 1))
    net.linear("fc", net.linear("fc", net.flatten(0), 3), 2)
    with pytest.raises(ModelError, match="a name of its own"):
        net.graph  # noqa: B018


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"nodes": 9}, "2 to 9 steps, not 10"),
        ({"values": 95}, "step 0 gives 96 values"),
        ({"held": 400}, "give more than 400 values"),
        ({"read": 431}, "reads more than 431 values"),
        ({"weights": 143}, "more than 143 weights"),
        ({"layer_weights": 71}, "more than 71 weights"),
    ],
)
def test_every_limit_holds(limits, sentence):
    graph = small().graph
    graph.check_limits(UNTRUSTED)
    with pytest.raises(ModelError, match=sentence):
        graph.check_limits(replace(UNTRUSTED, **limits))


def test_what_is_trusted_may_be_larger():
    assert all(getattr(UNTRUSTED, f) <= getattr(LIMITS, f) for f in Limits.__dataclass_fields__)


def test_the_limits_are_those_of_the_native_library():
    source = Path(fedtiny.__file__).parent / "native" / "csrc" / "limits.h"
    found = re.findall(r"MAX_(\w+) = (Index\{1\} << )?(\d+)", source.read_text(encoding="utf-8"))
    native = {name: 1 << int(n) if shifted else int(n) for name, shifted, n in found}
    ours = (LIMITS.nodes, LIMITS.values, LIMITS.layer_weights)
    assert (native["NODES"], native["VALUES"], native["WEIGHTS"]) == ours


def test_all_but_tracing_does_without_torch():
    folder = Path(fedtiny.__file__).parent / "graph"
    names = [f"fedtiny.graph.{path.stem}" for path in folder.glob("*.py") if path.stem != "trace"]
    code = f"import sys, {', '.join(names)}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# Operations


def test_every_kind_is_in_the_one_table_and_has_a_form_everywhere():
    assert set(OPERATIONS) == set(Kind)
    assert set(arithmetic.FORMS) == set(Kind)
    assert {*torch_model.MODULES, *torch_model.FUNCTIONS} == set(Kind)
    assert set(onnx_forms.FORMS) == set(Kind)
    assert {*c_program.ACTIONS, Kind.DROPOUT} == set(Kind)


def test_native_devices_lack_what_transformers_need_and_transposed_convolution():
    lacks = {Kind.SOFTMAX, Kind.MATMUL, Kind.PARAMETER, Kind.SCALE}
    assert set(Kind) - NATIVE == lacks | {Kind.TRANSPOSED_CONVOLUTION}


def test_what_a_backend_lacks_is_named():
    nodes = small().nodes
    assert lacking(nodes, NATIVE) == ""
    assert lacking(nodes, NATIVE - {Kind.MEAN_POOL, Kind.DROPOUT}) == "mean_pool"


SHAPES = {
    (4, 3, 1): lambda n: n.convolution("c", 0, 4, kernel=(3, 3), stride=(2, 2), dilation=(1, 2)),
    (4, 9, 6): lambda n: n.convolution(
        "c", 0, 4, kernel=(2, 2), padding=(2, 0), padding_end=(0, 1)
    ),
    (6, 17, 11): lambda n: n.node(
        Kind.TRANSPOSED_CONVOLUTION, 0, name="c", channels=6, kernel=(3, 3), stride=(2, 2),
        padding=(0, 1), output_padding=(0, 0),
    ),
    (2, 4, 3): lambda n: n.max_pool(0, (3, 3), (2, 2), ceil=True),
    (2, 3, 2): lambda n: n.max_pool(0, (3, 3), (2, 2)),
    (5, 8, 6): lambda n: n.linear("c", 0, 5),
    (4, 8, 6): lambda n: n.node(Kind.CONCAT, 0, 0),
    (2, 16, 6): lambda n: n.node(Kind.CONCAT, 0, 0, axis=1),
    (1, 8, 6): lambda n: n.node(Kind.SLICE, 0, start=1, channels=1),
    (6, 2, 8): lambda n: n.node(Kind.PERMUTE, 0, order=(2, 0, 1)),
    (2, 16, 18): lambda n: n.node(Kind.UPSAMPLE, 0, size=(16, 18)),
    (2, 8, 8): lambda n: n.node(Kind.MATMUL, 0, n.node(Kind.PERMUTE, 0, order=(0, 2, 1))),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_by_hand(shape):
    net = Builder((2, 8, 6))
    node = SHAPES[shape](net)
    net.linear("fc", net.flatten(node), 3)
    assert net.graph.shapes[node] == shape


def test_multiply_adds_come_from_shapes():
    graph = small().graph
    assert graph.uses == {"conv": 24, "fc": 1}
    assert graph.other_macs == 0


def test_a_transposed_convolution_uses_its_weights_at_each_place_that_it_reads():
    net = Builder((2, 8, 6))
    up = net.node(Kind.TRANSPOSED_CONVOLUTION, 0, name="up", channels=4, groups=2, stride=(3, 3))
    net.linear("fc", net.flatten(up), 3)
    assert net.graph.tensors["up.weight"] == (2, 2, 1, 1)
    assert net.graph.uses["up"] == 48


def test_a_product_of_two_things_has_multiply_adds_but_no_weights():
    net = Builder((2, 8, 6))
    turned = net.node(Kind.PERMUTE, 0, order=(0, 2, 1))
    net.linear("fc", net.flatten(net.node(Kind.MATMUL, 0, turned)), 3)
    assert net.graph.other_macs == 2 * 8 * 6 * 8
    assert net.graph.largest_read == 2 * 8 * 6 * 8
