"""Every layer against torch in float64: random shapes, strides, masks and batch sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from .strategies import masks_of, smooth_networks
from .twins import Twins, agree, batch, random_mask, supported_lanes, wake_norms


@st.composite
def cases(draw):
    model, shape = draw(smooth_networks())
    masks = draw(masks_of(model))
    return model, shape, masks, draw(st.integers(2, 40)), draw(st.integers(0, 2**16))


def options(**more):
    return {"batch": 64, "threads": 2, "input_gradient": True, **more}


@pytest.mark.slow
@settings(max_examples=60)
@given(cases(), st.booleans(), st.booleans())
def test_any_convolution_agrees_with_torch(case, recompute, remove_dead):
    model, shape, masks, count, seed = case
    chosen = options(recompute=recompute, remove_dead=remove_dead)
    twins = Twins.make(model, shape, masks, **chosen)
    images, labels = batch(np.random.default_rng(seed), count, shape, 3)
    expected = twins.torch.eval()(torch.from_numpy(images).double()).detach().numpy()
    agree({"logits": (expected, twins.native.logits(images))}, 2e-5)
    noise = twins.noise(images, labels)
    agree(twins.gradients(images, labels), 2e-4, noise)
    pairs = twins.states()
    if remove_dead:  # the statistics of what is left out stay as they are
        pairs = {name: pair for name, pair in pairs.items() if "running" not in name}
    agree(pairs, 2e-5)


@settings(max_examples=25)
@given(cases(), st.sampled_from(["sgd", "adam"]))
def test_one_step_of_an_optimizer_agrees_with_torch(case, optimizer):
    model, shape, masks, count, seed = case
    twins = Twins.make(model, shape, masks, batch=64, optimizer=optimizer)
    images, labels = batch(np.random.default_rng(seed), count, shape, 3)
    gradients = twins.gradients(images, labels)
    before = {name: found.copy() for name, (_, found) in twins.states().items()}
    twins.step(images, labels, optimizer)
    for name, (expected, found) in twins.states().items():
        steady = np.ones(len(found), dtype=bool)
        if optimizer == "adam" and name in gradients:  # of mere noise it makes whole steps
            total = gradients[name][0] + 1e-4 * before[name]
            steady = np.abs(total) > 1e-4
        agree({name: (expected[steady], found[steady])}, 1e-4)


def head(channels, size=1):
    return [nn.AdaptiveAvgPool2d(size), nn.Flatten(), nn.Linear(channels * size * size, 5)]


class Residual(nn.Module):
    """Two sums: of a shortcut with batch norm, and of an identity."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.left = nn.Conv2d(6, 8, 3, 2, padding=1)
        self.left_norm = nn.BatchNorm2d(8)
        self.right = nn.Conv2d(6, 8, 1, 2)
        self.right_norm = nn.BatchNorm2d(8)
        self.more = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.left_norm(self.left(x)) + self.right_norm(self.right(x)))
        x = self.more(x) + x
        return self.fc(x.mean((2, 3)))


class Shared(nn.Module):
    """One tensor read in every way: by convolutions, sums, ReLU, batch norm and a pool."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 5, padding=2)
        self.norm = nn.BatchNorm2d(4)
        self.straggler = nn.BatchNorm2d(4)
        self.flat = nn.BatchNorm1d(4)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.stem(x)
        y = torch.relu(x)
        z = self.a(y) + self.b(y)
        z = self.norm(x + z) + y
        z = z + z
        z = self.straggler(self.pool(torch.relu(z) + self.norm_less(z)))
        return self.fc(torch.relu(self.flat(z.mean((2, 3)))))

    def norm_less(self, z):
        return torch.relu(z)


KINDS = {
    "max pool": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), *head(6, 2)
    ),
    "overlapping max pool": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d((3, 2), (2, 1), (1, 0)), *head(6, 3)
    ),
    "mean pool": lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AvgPool2d(2), *head(6)),
    "padded mean pool": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.AvgPool2d(3, 2, 1), *head(6)
    ),
    "padding not counted": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.AvgPool2d(3, 2, 1, count_include_pad=False), *head(6)
    ),
    "uneven adaptive pool": lambda: nn.Sequential(nn.Conv2d(3, 6, 3), *head(6, 7)),
    "linear layers": lambda: nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 11 * 11, 20),
        nn.ReLU(),
        nn.Linear(20, 20, bias=False),
        nn.BatchNorm1d(20),
        nn.ReLU(),
        nn.Linear(20, 5),
    ),
    "first of all batch norm": lambda: nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3), nn.ReLU(), *head(6)
    ),
    "batch norm last": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5, bias=False),
        nn.BatchNorm1d(5),
        nn.ReLU(),
    ),
    "residual": Residual,
    "shared": Shared,
}


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_network(kind, recompute, storage):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = wake_norms(KINDS[kind]())
    masks = {n: random_mask(p.numel(), 0.5, rng) for n, p in model.named_parameters() if p.ndim > 1}
    twins = Twins.make(model, (3, 11, 11), masks, **options(recompute=recompute, storage=storage))
    images, labels = batch(rng, 13, (3, 11, 11), 5)
    pairs = twins.gradients(images, labels)
    if storage == "float32":
        agree(pairs, 1e-4)
        agree(twins.states(), 1e-5)
    else:
        for name, (expected, found) in pairs.items():  # a few kinks are crossed
            size = np.linalg.norm(expected)
            assert np.linalg.norm(expected - found) < 0.1 * size + 2e-3, name


@pytest.mark.parametrize("lanes", supported_lanes())
@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_every_instruction_set_agrees(lanes, storage):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = wake_norms(Residual())
    twins = Twins.make(model, (3, 9, 9), {}, **options(lanes=lanes, storage=storage))
    images, labels = batch(rng, 21, (3, 9, 9), 5)
    pairs = twins.gradients(images, labels)
    if storage == "float32":
        agree(pairs, 1e-4)
    else:
        for name, (expected, found) in pairs.items():
            assert np.linalg.norm(expected - found) < 0.1 * np.linalg.norm(expected) + 2e-3, name


def test_dropout_keeps_its_share_and_its_mask():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(400, 3))
    twins = Twins.make(model, (1, 20, 20), {}, batch=32, input_gradient=True)
    images, labels = batch(np.random.default_rng(0), 32, (1, 20, 20), 3)
    native = twins.native
    native.train(images, labels, seed=5, update=False)
    first = native.input_gradient()
    dropped = first == 0
    assert abs(dropped.mean() - 0.25) < 0.02
    kept_values = np.where(dropped, 0, images / 0.75).reshape(32, -1)
    bias = native.gradient("2.bias")
    native.train(images, labels, seed=5, update=False)
    np.testing.assert_array_equal(first, native.input_gradient())
    np.testing.assert_array_equal(bias, native.gradient("2.bias"))
    native.train(images, labels, seed=6, update=False)
    assert (dropped != (native.input_gradient() == 0)).mean() > 0.2
    plain = twins.torch[2](torch.from_numpy(kept_values).double()).detach().numpy()
    assert np.isfinite(plain).all()
    expected = twins.torch.eval()(torch.from_numpy(images).double()).detach().numpy()
    np.testing.assert_allclose(native.logits(images), expected, rtol=1e-4, atol=1e-5)


def test_a_large_mean_costs_no_digits():
    torch.manual_seed(0)
    model = wake_norms(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3), *head(6)))
    twins = Twins.make(model, (3, 9, 9), {}, **options())
    images, labels = batch(np.random.default_rng(0), 20, (3, 9, 9), 5)
    agree(twins.gradients(images + np.float32(300), labels), 1e-3)
    _, var = twins.native.batch_statistics("0")
    expected = (images + np.float32(300)).astype(np.float64).var(axis=(0, 2, 3))
    np.testing.assert_allclose(var, expected, rtol=1e-5)


@pytest.mark.parametrize("recompute", [False, True])
def test_frozen_batch_norm_agrees_with_torch_and_lets_a_bias_before_it_learn(recompute):
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 4, 3, stride=2, bias=False),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    wake_norms(model)
    for norm in (model[1], model[4]):
        norm.running_mean.uniform_(-0.5, 0.5)
        norm.running_var.uniform_(0.5, 2)
    kept = {"3.weight": random_mask(180, 0.4, np.random.default_rng(0))}
    twins = Twins.make(model, (2, 9, 9), kept, **options(recompute=recompute))
    images, labels = batch(np.random.default_rng(1), 7, (2, 9, 9), 3)
    pairs = twins.gradients(images, labels, freeze_norms=True)
    agree(pairs, 1e-4)
    assert np.abs(pairs["0.bias"][1]).max() > 1e-3
    agree(twins.states(), 1e-6)  # statistics stay
    one = twins.gradients(images[:1], labels[:1], freeze_norms=True)
    agree(one, 1e-4)
