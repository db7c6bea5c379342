"""Fedfit: what devices score, and what the server swaps by it."""

import numpy as np
import pytest
import torch

from fedtiny import methods
from fedtiny.cost import flops, memory
from fedtiny.devices.batches import gradient_batch
from fedtiny.devices.node import answer
from fedtiny.federation.messages import Reply, Request, drop_scores, top_gradients
from fedtiny.federation.rounds import play_round
from fedtiny.federation.server import Server
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector

from ..cost.tiny import workload
from ..devices.tiny import Smooth, lab, seeded, settings
from ..federation.fakes import FakeTransport

SPEC = ParamSpec({"a": (12,)}, {"bias": (1,)}, (("a",),), (), "first", "last")
MASK = Mask(SPEC, {"a": [0, 1, 2, 3, 4, 5, 6]})


def vector(values):
    return SparseVector(12, np.array([*values], np.int32), np.array([*values.values()], "f4"))


GROWTH = [{7: 4.0, 8: -3.0}, {7: -4.0, 9: 2.0}, {8: -3.0, 9: 2.0}]
DROP = [[0, 5, 5, -2, 9, 9, 9], [0, 5, 5, 9, 9, -9, 9], [0, 5, -4, 9, 9, 1, 9]]


def test_the_server_swaps_by_mean_scores_whatever_the_magnitudes():
    """Means to grow: 0 at 7, -2 at 8, 4/3 at 9. Means to drop: 0, 5, 2, 16/3, 9, 1/3, 9."""

    def devices(device, request):
        drop = {"a": np.array(DROP[device], np.float32)}
        return Reply(device, 1, request.theta, {"a": vector(GROWTH[device])}, drop)

    theta = Theta(MASK, np.arange(length(MASK), 0, -1).astype(np.float32))
    config = settings(method="fedfit", density=7 / 12, pruning={"delta_r": 2, "r_stop": 4})
    server = Server(config, FakeTransport(3, devices), theta, coarse_pruned=True)
    method = methods.create(config)
    assert method.score(server) == (
        top_gradients({"a": 2}, 0.0, fisher=True),
        drop_scores({"a": 7}, 0.0),
    )
    result = play_round(server, method)
    assert result.changes["a"].grown.tolist() == [8, 9]
    assert result.changes["a"].dropped.tolist() == [0, 5]


def test_rounds_between_ask_for_training_only():
    config = settings(method="fedfit", density=7 / 12, pruning={"delta_r": 2, "r_stop": 4})
    theta = Theta(MASK, np.zeros(length(MASK), np.float32))
    assert methods.create(config).score(Server(config, FakeTransport(), theta, round=1)) == ()


@pytest.mark.parametrize("layer", ["one", "two"])
def test_a_device_s_drop_score_by_hand(layer):
    """-g w + w^2 F / 2; F is the mean square of the input times that of an image's own gradient."""
    bench = lab(settings(method="fedfit"), model=seeded(Smooth), augment=False)
    name, seen = f"{layer}.weight", {}
    request = Request("train", "fedfit", 0, (drop_scores({name: 6}),), bench.start)
    found = answer(bench.engine, request, bench.shards[0], bench.config.seed).arrays[name]

    (samples, _), _ = gradient_batch(
        bench.shards[0], bench.rng_key(), bench.engine.transform, most=4
    )
    inputs, labels = bench.engine.inputs(bench.data.train, samples)
    module = bench.model.get_submodule(layer)

    def note(_, args, output):
        output.retain_grad()
        seen.update(a=args[0].detach(), z=output)

    hook = module.register_forward_hook(note)
    torch.nn.functional.cross_entropy(bench.model.train()(inputs), labels).backward()
    hook.remove()
    own = seen["z"].grad * len(samples)  # the loss is a mean over images
    fisher = own.square().mean(0)[:, None] * seen["a"].square().mean(0)[None]
    weight, gradient = module.weight.detach(), module.weight.grad
    expected = (-gradient * weight + weight.square() * fisher / 2).reshape(-1)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-8)


def test_what_it_costs_a_device():
    """48 and 1 gradients; scores of 160 + 4 kept weights; factors of 64 inputs and 5 filters."""
    work = workload("fedfit")
    items = memory.device(work)
    assert items["top_a_buffer"] == 8 * (48 + 1)
    assert items["drop_scores"] == 8 * (160 + 4)
    assert items["fisher_factors"] == 4 * (64 + 5)
    counted = flops.of_round(work, 2)
    assert counted["drop_score_pass"] == 2 * counted["top_a_pass"]
    assert "drop_score_pass" not in flops.of_round(work, 1)
