"""Dropout by key: the same key draws the same, and no draw depends on what came before."""

from itertools import combinations

import pytest
import torch
from torch import nn

from fedtiny.devices.engine import Adam
from fedtiny.devices.gpu.image_store import Images
from fedtiny.devices.gpu.stand_ins import NEXT, KeyedDropout, playable
from fedtiny.devices.gpu.step import Kind, Step
from fedtiny.errors import ModelError

from ..tiny import TinyNet, lab, random_mask, seeded
from .rig import CPU, network_of, noise, put


def dropped(p=0.5, key=1, shape=(64, 100)):
    """Which of many ones a key drops."""
    dropout = KeyedDropout(p).train()
    dropout.key.fill_(key)
    return dropout(torch.ones(shape)) == 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_about_the_asked_share_is_dropped_everywhere(p):
    there = dropped(p, shape=(400, 500)).float()
    assert there.mean().item() == pytest.approx(p, abs=0.005)
    assert (there.mean(0) - p).abs().max() < 0.15  # in every column
    assert (there.mean(1) - p).abs().max() < 0.15  # and in every row


def test_the_mean_is_preserved():
    dropout, x = KeyedDropout(0.3).train(), torch.rand(500, 500)
    assert dropout(x).mean().item() == pytest.approx(x.mean().item(), rel=0.01)
    kept = dropout(x) != 0
    torch.testing.assert_close(dropout(x)[kept], x[kept] / 0.7)


def test_gradients_pass_through_what_is_kept():
    dropout, x = KeyedDropout(0.5).train(), torch.ones(40, 40, requires_grad=True)
    dropped = dropout(x)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.equal(gradient, dropped.detach())


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True), (0.0, False)])
def test_out_of_training_and_at_rate_zero_nothing_changes(p, training):
    dropout, x = KeyedDropout(p).train(training), torch.randn(10, 10)
    assert torch.equal(dropout(x), x)


def test_a_key_draws_the_same_again_and_another_key_draws_otherwise():
    assert torch.equal(dropped(key=5), dropped(key=5))
    agreeing = (dropped(key=5) == dropped(key=6)).float().mean().item()
    assert agreeing == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("key", [0, -1, 2**63 - 1, -(2**63)])
def test_any_key_will_do(key):
    assert dropped(key=key).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_it_keeps_the_precision_of_what_it_gets():
    dropout = KeyedDropout(0.5).train()
    assert dropout(torch.ones(4, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_generator_is_neither_read_nor_moved():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    dropped()
    assert torch.equal(torch.get_rng_state(), before)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.deep = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.2), nn.ReLU()))


def test_every_dropout_of_a_model_gets_a_key_however_deep_it_lies():
    model = playable(Nested())
    found = [module.p for module in model.modules() if isinstance(module, KeyedDropout)]
    assert found == [0.1, 0.2]
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    assert sum(isinstance(module, KeyedDropout) for module in model.modules()) == 2
    assert "drop.key" not in model.state_dict()


@pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_a_dropout_of_channels_drops_whole_ones(kind):
    model = playable(nn.Sequential(kind(0.4)))
    x = torch.ones(200, 30, 5) if kind is nn.Dropout1d else torch.ones(200, 30, 2, 3)
    dropped = (model(x) == 0).flatten(2)
    assert torch.equal(dropped.all(2), dropped.any(2))
    assert dropped.float().mean().item() == pytest.approx(0.4, abs=0.03)
    assert (dropped[:, :, 0].float().mean(0) - 0.4).abs().max() < 0.15


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_a_dropout_that_cannot_be_drawn_by_key_is_refused_clearly(kind):
    with pytest.raises(ModelError, match=rf"layer '1' is a {kind.__name__}, .* reference"):
        playable(nn.Sequential(nn.Linear(2, 2), kind(0.5)))


class Halved(nn.Dropout):
    def forward(self, x):
        return x / 2


def test_a_layer_that_only_looks_like_a_dropout_stays_what_it_was():
    own = Halved(0.5)
    assert type(playable(nn.Sequential(own))[0]) is type(own)


class Twice(nn.Module):
    """One dropout under two names."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.layers = nn.Sequential(nn.Linear(2, 2), self.drop)


def test_a_dropout_with_two_names_is_replaced_at_both():
    model = playable(Twice())
    assert isinstance(model.layers[1], KeyedDropout)
    assert model.layers[1] is model.drop


def two_dropouts():
    model = seeded(TinyNet, 0.5)
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    return network_of(model)


def test_the_dropouts_of_a_network_differ_and_follow_the_seed():
    network = two_dropouts()
    drawn = []
    for seed in (1, 2, 1):
        network.set_keys(seed)
        masks = [m(torch.ones(40, 50)) == 0 for m in modules(network)]
        drawn.append(masks)
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True))


def modules(network):
    return [m.train() for m in network.module.modules() if isinstance(m, KeyedDropout)]


@pytest.mark.parametrize("seed", [0, 1, 2**62, 2**63 - 1])
def test_any_seed_gives_keys(seed):
    network = two_dropouts()
    network.set_keys(seed)
    assert len({int(key) for key in network.keys}) == 2


def overlap(one, other, most=64):
    """How much of a mask is found in another that is moved along by up to so many places."""
    one, other = one.flatten(), other.flatten()
    pairs = [(one[by:], other[: len(other) - by]) for by in range(most)]
    pairs += [(b, a) for a, b in ((other[by:], one[: len(one) - by]) for by in range(1, most))]
    return max((a == b).float().mean().item() for a, b in pairs)


def test_the_mask_of_the_next_step_is_not_this_one_moved_along():
    def following(steps):
        dropout = KeyedDropout(0.5).train()
        dropout.key.fill_(1)
        for _ in range(steps):
            dropout.key += NEXT  # as a step does
        return dropout(torch.ones(100, 100)) == 0

    assert overlap(following(0), following(1)) < 0.6


def test_the_mask_of_another_module_is_not_this_one_s_moved_along():
    network = two_dropouts()
    network.set_keys(2**63 - 1)  # of every fourth seed it is
    first, second = (module(torch.ones(100, 100)) == 0 for module in modules(network))
    assert overlap(first, second) < 0.6


def test_every_step_of_a_training_draws_anew_and_the_seed_alone_decides_what():
    bench, network, seen = lab(), network_of(seeded(TinyNet, 0.5)), []
    put(network, noise(random_mask(network.layout.param_spec)))
    images = Images(bench.data.train, bench.engine.transform, CPU)
    step = Step(Kind(8), network, Adam(1e-3), images)
    network.module.dropout.register_forward_pre_hook(lambda _, args: args[0] * 0 + 1)
    network.module.dropout.register_forward_hook(
        lambda _, args, out: seen.append(out.detach().numpy().tobytes())
    )
    for seed in (1, 2, 1):
        step.reset(seed)
        step.run(torch.zeros(3, 8, 6, dtype=torch.int32) + torch.arange(8)[None, :, None] % 2)
    first, other, again = seen[:3], seen[3:6], seen[6:]
    assert first == again
    assert len({*first, *other}) == 6


@pytest.mark.parametrize("seed", [1, 2**62 + 5, 2**63 - 1])
def test_no_two_layers_and_steps_of_a_training_share_a_mask(seed):
    model = seeded(TinyNet, 0.5)
    model.head = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), model.head)
    bench, network, seen = lab(), network_of(model), []
    put(network, noise(random_mask(network.layout.param_spec)))
    images = Images(bench.data.train, bench.engine.transform, CPU)
    step = Step(Kind(8), network, Adam(1e-3), images)
    for module in modules(network):
        module.register_forward_hook(
            lambda dropout, *_: seen.append(dropout.forward(torch.ones(40, 50)) == 0)
        )
    step.reset(seed)
    step.run(torch.zeros(6, 8, 6, dtype=torch.int32) + torch.arange(8)[None, :, None] % 2)
    assert len(seen) == 3 * 6
    for one, other in combinations(seen, 2):
        assert (one == other).float().mean().item() == pytest.approx(0.5, abs=0.06)


def test_a_rate_of_one_drops_all_and_has_no_gradient():
    x = torch.ones(4, 4, requires_grad=True)
    out = KeyedDropout(1.0).train()(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert not out.any()
    assert not gradient.any()
