"""Adaptive average pooling by products gives what PyTorch's own gives, and so do its gradients."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedtiny.devices.gpu.network import playable
from fedtiny.devices.gpu.step import CompiledLoss
from fedtiny.devices.torch_pooling import (
    DeterministicAdaptivePool,
    deterministic_pool,
    deterministic_pools,
)
from fedtiny.models.networks import vgg11

from .tiny import TinyNet, lab

sizes = st.integers(1, 9)


def pooled(pool, x):
    x = x.clone().requires_grad_()
    found = pool(x)
    (found * torch.arange(found.numel()).view(found.shape)).sum().backward()
    return found.detach(), x.grad


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.one_of(st.none(), sizes), st.one_of(st.none(), sizes))
def test_any_size_is_pooled_to_any_other(height, width, rows, columns):
    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    theirs = pooled(nn.AdaptiveAvgPool2d((rows, columns)), x)
    for ours, own in zip(pooled(DeterministicAdaptivePool(rows, columns), x), theirs, strict=True):
        torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-4)


def test_one_pixel_is_repeated_exactly():
    x = torch.randn(4, 5, 1, 1)
    assert torch.equal(DeterministicAdaptivePool(7, 7)(x), x.expand(4, 5, 7, 7))


def test_the_precision_of_what_comes_in_is_kept_under_autocast():
    x = torch.full((1, 1, 3, 3), 1 / 3, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(DeterministicAdaptivePool(2, 2)(x), x[..., :2, :2])


def test_double_precision_is_kept_too():
    x = torch.full((1, 1, 3, 3), 1 / 3, dtype=torch.float64)
    assert torch.equal(DeterministicAdaptivePool(2, 2)(x), x[..., :2, :2])


@pytest.mark.parametrize("size", [7, (7, 7), (None, 2), [3, None]])
def test_poolings_of_any_form_have_a_steady_one(size):
    pool, x = nn.AdaptiveAvgPool2d(size), torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(deterministic_pool(pool)(x), pool(x))


def test_steady_pools_answer_for_layers_that_stay_until_they_are_let_go(monkeypatch):
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.AdaptiveAvgPool2d(7)))
    x = torch.randn(2, 3, 5, 4)
    plain = model(x)
    monkeypatch.setattr(DeterministicAdaptivePool, "forward", lambda self, input: input + self.rows)
    handles = deterministic_pools(model)
    pool, twin = model[1][0], pickle.loads(pickle.dumps(model))
    assert type(pool) is nn.AdaptiveAvgPool2d
    for found in (model(x), copy.deepcopy(model)(x), twin(x), pool(input=x.relu())):
        assert torch.equal(found, x.relu() + 7)
    for handle in handles:
        handle.remove()
    assert torch.equal(model(x), plain)


def test_the_server_s_network_has_them_on_cuda_only():
    """As far as can be seen without such a device."""
    bench = lab(model=nn.Sequential(nn.AdaptiveAvgPool2d(4), TinyNet()))
    pool = bench.model[0]
    bench.engine.device = torch.device("cuda")
    for _ in range(2):
        bench.engine._use_deterministic_pools()
        assert len(pool._forward_hooks) == 1
    bench.engine.device = torch.device("cpu")
    bench.engine.to("cpu")
    assert not pool._forward_hooks


class Squared(nn.AdaptiveAvgPool2d):
    def forward(self, x):
        return super().forward(x * x)


@pytest.mark.parametrize(
    "pool", [nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d([1, 1]), Squared(2)]
)
def test_a_mean_over_all_pixels_and_what_only_looks_like_a_pooling_stay_what_they_were(pool):
    assert deterministic_pool(pool) is None


def test_both_the_recorded_and_the_compiled_network_have_it():
    model = vgg11(3, 10, 1)
    for own in (playable(model), CompiledLoss(model, torch.float32).template):
        assert any(isinstance(module, DeterministicAdaptivePool) for module in own.modules())
    assert not any(isinstance(module, DeterministicAdaptivePool) for module in model.modules())
