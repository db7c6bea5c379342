"""Reading the parameter spec off a network that is not ours."""

import pytest
import torch
from torch import nn

from fedtiny.errors import ModelError
from fedtiny.models import ParamSpec, analyze

SHAPE = (1, 6, 6)


class Backwards(nn.Module):
    """Registers its layers in the opposite order of running them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.third = nn.Conv2d(3, 3, 1)
        self.second = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(2)
        self.first = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        x = self.third(self.second(self.norm(self.first(x))))
        return self.head(x.mean(dim=(2, 3)))


def chain(layers, *extra):
    """Linear layers one after the other; the last is the output."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 4), *extra, *(nn.Linear(4, 4) for _ in range(layers - 1))
    )


def test_layers_come_in_the_order_in_which_they_run():
    param_spec = analyze(Backwards(), SHAPE)
    assert param_spec.input_layer == "first"
    assert list(param_spec.prunable.items()) == [
        ("second.weight", (3, 2, 3, 3)),
        ("third.weight", (3, 3, 1, 1)),
    ]
    assert param_spec.output_layer == "head"


def test_what_is_not_prunable_is_dense_but_counters_are_neither():
    param_spec = analyze(Backwards(), SHAPE)
    assert param_spec.dense == {
        "head.weight": (2, 3),
        "head.bias": (2,),
        "third.bias": (3,),
        "second.bias": (3,),
        "norm.weight": (2,),
        "norm.bias": (2,),
        "norm.running_mean": (2,),
        "norm.running_var": (2,),
        "first.weight": (2, 1, 3, 3),
        "first.bias": (2,),
    }
    assert "norm.num_batches_tracked" in Backwards().state_dict()
    assert param_spec.norms == ("norm",)
    assert param_spec.statistics == {"norm.running_mean": (2,), "norm.running_var": (2,)}


@pytest.mark.parametrize(
    ("prunable", "blocks"),
    [(1, [1]), (4, [1] * 4), (5, [1] * 5), (7, [2, 2, 2, 1]), (9, [2, 2, 2, 2, 1]), (12, [3] * 4)],
)
def test_by_default_the_layers_are_cut_into_at_most_five_even_runs(prunable, blocks):
    param_spec = analyze(chain(prunable + 2), SHAPE)
    assert [len(block) for block in param_spec.blocks] == blocks
    assert sum(param_spec.blocks, ()) == tuple(param_spec.prunable)


def test_a_network_may_declare_its_blocks():
    network = chain(6)
    network.pruning_blocks = [["4", "5"], ["2", "3"]]
    assert analyze(network, SHAPE).blocks == (("4.weight", "5.weight"), ("2.weight", "3.weight"))


def test_a_declared_block_takes_every_layer_inside_its_modules():
    stages = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(2))
    network = nn.Sequential(chain(1), *stages)
    network.pruning_blocks = (("1",), ("2.0",))
    param_spec = analyze(network, SHAPE)
    assert param_spec.blocks == (("1.0.weight", "1.2.weight"), ("2.0.weight",))


@pytest.mark.parametrize(
    "blocks",
    [
        [["2"]],  # leaves layer 3 out
        [["2", "3"], ["3"]],  # has it twice
        [["2"], ["3"], ["head"]],  # names what is not there
        [["2", "3"], []],
    ],
)
def test_declared_blocks_must_hold_each_prunable_layer_once(blocks):
    network = chain(4)
    network.pruning_blocks = blocks
    with pytest.raises(ModelError, match="block"):
        analyze(network, SHAPE)


def test_an_unknown_name_in_a_block_is_told():
    network = chain(4)
    network.pruning_blocks = [["2"], ["3", "head"]]
    with pytest.raises(ModelError, match=r"pruning_blocks .* names \['head'\], no module"):
        analyze(network, SHAPE)


@pytest.mark.parametrize(
    ("attribute", "given"),
    [
        ("prunable_layers", "2"),
        ("prunable_layers", 2),
        ("prunable_layers", [2, 3]),
        ("prunable_layers", []),
        ("pruning_blocks", ["2", "3"]),
        ("pruning_blocks", 5),
        ("pruning_blocks", "2"),
        ("pruning_blocks", []),
    ],
)
def test_what_is_no_list_of_names_is_refused(attribute, given):
    network = chain(4)
    setattr(network, attribute, given)
    with pytest.raises(ModelError, match=f"{attribute} of the model takes lists of layer names"):
        analyze(network, SHAPE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_parameters_must_be_float32(dtype):
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ModelError, match=rf"'1\.weight' .* is {kind}; .* give model\.float\(\)"):
        analyze(chain(4).to(dtype), SHAPE)


def test_one_layer_is_not_taken_for_another_whose_name_starts_alike():
    network = chain(13)
    network.pruning_blocks = [["1", "2"], [str(n) for n in range(3, 13)]]
    assert analyze(network, SHAPE).blocks[0] == ("2.weight",)  # and not 10, 11, 12


@pytest.mark.parametrize("layers", [1, 2])
def test_a_network_of_too_few_layers_is_refused(layers):
    with pytest.raises(ModelError, match=f"has {layers} convolution or linear layers.*three"):
        analyze(chain(layers), SHAPE)


def test_batch_norm_must_track_its_statistics():
    norm = nn.BatchNorm2d(2, track_running_stats=False)
    head = (nn.Flatten(), nn.Linear(32, 4), nn.Linear(4, 2))
    network = nn.Sequential(nn.Conv2d(1, 2, 3), norm, *head)
    with pytest.raises(ModelError, match=r"batch-norm layer '1' must track .*_stats=True"):
        analyze(network, SHAPE)


def test_batch_norm_after_a_linear_layer_must_track_its_statistics():
    with pytest.raises(ModelError, match="must track"):
        analyze(chain(4, nn.BatchNorm1d(4, track_running_stats=False)), SHAPE)


def test_a_network_that_does_not_take_the_shape_is_refused():
    with pytest.raises(ModelError, match=r"does not take samples of shape \(3, 6, 6\)"):
        analyze(Backwards(), (3, 6, 6))


class Particular(nn.Module):
    """Checks its input itself, as many networks do."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error("expected three channels")


@pytest.mark.parametrize("error", [ValueError, AssertionError, TypeError])
def test_a_network_that_refuses_the_shape_in_its_own_words_is_refused(error):
    with pytest.raises(ModelError, match="does not take samples of shape"):
        analyze(chain(4, Particular(error)), SHAPE)


def test_tied_prunable_weights_are_refused():
    network = chain(4)
    network[3].weight = network[2].weight
    with pytest.raises(ModelError, match="'2' and '3' share a weight"):
        analyze(network, SHAPE)


@pytest.mark.parametrize("training", [True, False])
def test_dissecting_leaves_no_trace(training):
    network = Backwards().train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    torch.manual_seed(0)
    generator = torch.get_rng_state()
    analyze(network, SHAPE)
    assert network.training == training
    assert all(torch.equal(before[name], t) for name, t in network.state_dict().items())
    assert not any(module._forward_hooks for module in network.modules())
    assert torch.equal(torch.get_rng_state(), generator)


def test_hooks_go_when_the_pass_fails():
    network = Backwards()
    with pytest.raises(ModelError):
        analyze(network, (3, 6, 6))
    assert not any(module._forward_hooks for module in network.modules())


def test_two_models_have_two_fingerprints_and_one_model_one():
    one, same, other = (analyze(network, SHAPE) for network in (chain(4), chain(4), chain(5)))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_blocks_are_checked_wherever_an_anatomy_is_made():
    with pytest.raises(ModelError, match="exactly once; got 1 entries for 2"):
        ParamSpec({"a": (2,), "b": (2,)}, {}, (("a",),), (), "first", "last")
    with pytest.raises(ModelError, match="holds no prunable weight"):
        ParamSpec({"a": (2,)}, {}, (("a",), ()), (), "first", "last")
