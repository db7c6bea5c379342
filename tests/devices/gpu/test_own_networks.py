"""Networks of one's own train as on the reference, or are refused in a clear sentence."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny.devices.engine import Adam
from fedtiny.devices.gpu import step as steps
from fedtiny.devices.gpu.image_store import Images
from fedtiny.devices.gpu.kernels import CapturedGraph
from fedtiny.devices.node import answer
from fedtiny.errors import ModelError
from fedtiny.federation.messages import (
    bn_statistics,
    evaluate,
    losses,
    prune_and_grow,
    top_gradients,
    train,
)

from ..tiny import PlainNet, TinyNet, everything, lab, seeded, settings, tasks
from .rig import CPU, DRAWING, answers, assert_near, engine_of, lanes_of, order, put, select

OPTIMIZERS = ["adam", "sgd"]


class Cumulative(TinyNet):
    def __init__(self):
        super().__init__()
        self.bn1.momentum = None


def test_a_batch_norm_that_counts_its_batches_is_refused_clearly():
    bench = lab(model=seeded(Cumulative))
    with pytest.raises(ModelError, match=r"'bn1' counts its batches .* reference"):
        engine_of(bench)


class Spare(TinyNet):
    """A parameter that the network does not use."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_parameter_that_is_not_used_stays_as_it_is(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}), model=seeded(Spare))
    theirs, ours = answers(bench, order(bench, train(1)))
    assert_near(ours, theirs)
    assert ours.theta.tensor("spare").tolist() == [1, 1, 1]


class Frozen(TinyNet):
    """A parameter and a layer that are not trained."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4, 1, 1), requires_grad=False)
        self.conv1.weight.requires_grad_(False)

    def forward(self, x):
        return super().forward(x) * self.gain[0, 0, 0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_frozen_parameter_is_not_trained(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}), model=seeded(Frozen))
    request = order(bench, train(1, sum_dense_gradients=True))
    theirs, ours = answers(bench, request)
    assert_near(ours, theirs)
    for name in ("gain", "conv1.weight"):
        assert np.array_equal(ours.theta.tensor(name), request.theta.tensor(name))
    assert not ours.arrays["conv1.weight"].any()


def test_a_frozen_layer_stays_as_it_is_under_every_mask():
    bench = lab(model=seeded(Frozen))
    engine = engine_of(bench)
    for density, seed in ((0.5, 0), (0.2, 1), (0.9, 2), (0.5, 3)):
        theta = bench.theta(density, seed)
        found = answer(engine, order(bench, train(1), theta=theta), bench.shards[0], 0).theta
        assert np.array_equal(found.kept("conv1.weight"), theta.kept("conv1.weight"))
        assert (found.kept("conv2.weight") != theta.kept("conv2.weight")).any()


class Scaled(TinyNet):
    """A float buffer that is no batch-norm statistic."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return super().forward(x * self.scale)


def test_a_buffer_of_one_s_own_is_loaded_and_kept():
    bench = lab(model=seeded(Scaled))
    theta = bench.theta().with_dense({"scale": np.float32(0.25)})
    theirs, ours = answers(bench, order(bench, train(1), evaluate(), theta=theta))
    assert_near(ours, theirs)
    assert ours.theta.tensor("scale") == 0.25


@pytest.mark.parametrize("second_moment", ["var", "square"])
def test_a_buffer_of_one_s_own_is_no_statistic(second_moment):
    bench = lab(model=seeded(Scaled))
    request = select(bench, bn_statistics(128, second_moment=second_moment))
    theirs, ours = answers(bench, request)
    assert_near(ours, theirs, atol=1e-6)


def test_losses_beside_a_buffer_of_one_s_own_are_the_reference_s():
    bench = lab(model=seeded(Scaled))
    measured = answer(bench.engine, select(bench, bn_statistics(128)), bench.shards[1], 0).arrays
    theirs, ours = answers(bench, select(bench, losses(), arrays=measured))
    assert_near(ours, theirs)


def test_a_network_without_batch_norm_has_no_statistics():
    bench = lab(model=seeded(PlainNet))
    theirs, ours = answers(bench, select(bench, bn_statistics(128)))
    assert ours.arrays == theirs.arrays == {}


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d])
def test_no_kind_of_dropout_depends_on_what_came_before(kind):
    network = seeded(TinyNet)
    network.dropout = kind(0.5)
    bench = lab(model=network)
    request, engine = order(bench, train(2)), engine_of(bench)
    first, again = (answer(engine, request, bench.shards[2], 0) for _ in range(2))
    assert everything(first) == everything(again)


class Branching(TinyNet):
    """Looks at its values to decide what to do, which neither a compiler nor a graph can."""

    def forward(self, x):
        return super().forward(x if x.mean().item() > 0 else -x)


def compiled_loss(bench, monkeypatch):
    """A loss whose operations (and those of its steps) are traced, but not made into code."""
    monkeypatch.setattr(
        steps, "fused", partial(torch.compile, dynamic=False, fullgraph=True, backend="eager")
    )
    return steps.CompiledLoss(bench.model, torch.float32)


def compiled_step(bench, monkeypatch):
    """A step that is traced as on a GPU."""
    loss = compiled_loss(bench, monkeypatch)
    network = engine_of(bench).network
    put(network, bench.theta())
    images = Images(bench.data.train, bench.engine.transform, CPU)
    return steps.Step(steps.Kind(4), network, Adam(1e-3), images, loss)


@pytest.fixture
def _compilers_forget():
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_compilers_forget")
def test_a_network_that_cannot_be_compiled_is_told_the_way_out(monkeypatch):
    step = compiled_step(lab(model=seeded(Branching)), monkeypatch)
    with pytest.raises(ModelError, match=r"compile cannot take .*--gpu\.no-compile or --sim") as e:
        step.run(torch.zeros(1, 4, 6, dtype=torch.int32))
    assert isinstance(e.value.__cause__, torch._dynamo.exc.TorchDynamoException)


@pytest.mark.usefixtures("_compilers_forget")
def test_a_network_that_can_be_compiled_is_not_refused(monkeypatch):
    step = compiled_step(lab(model=seeded(TinyNet)), monkeypatch)
    step.run(torch.zeros(1, 4, 6, dtype=torch.int32))
    assert step.loss > 0


@pytest.mark.usefixtures("_compilers_forget")
def test_a_mask_that_grows_round_after_round_can_be_compiled_to_the_end(monkeypatch):
    bench = lab(model=seeded(TinyNet))
    engine = engine_of(bench)
    engine.shared.compiled_losses = {False: compiled_loss(bench, monkeypatch)}
    rooms = set()
    for density in np.geomspace(0.02, 1, 15):
        engine.load(bench.theta(density))
        engine.train(bench.shards[0], bench.rng_key(), epochs=1)
        rooms.add(engine.network.capacity)
    assert len(rooms) <= 5
    assert max(rooms) == bench.param_spec.prunable_count


class Graph:
    """Stands in for a CUDA graph whose recording is spoilt by work that failed."""

    def __init__(self):
        self.calls = []

    def capture_begin(self, **_):
        self.calls.append("begin")

    def capture_end(self):
        self.calls.append("end")
        if self.spoilt:
            raise RuntimeError("operation failed due to a previous error during capture")


class Stream:
    def synchronize(self):
        pass


def capture(monkeypatch, trouble=None):
    """Work that goes well in a warm-up and, if there is trouble, fails when it is recorded."""
    graph, done = Graph(), []
    graph.spoilt = trouble is not None

    def work():
        done.append(len(done))
        if trouble and graph.calls:
            raise trouble
        return len(done)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    return graph, lambda: CapturedGraph(work, Stream(), warm_ups=2)


def test_work_is_warmed_up_and_then_recorded(monkeypatch):
    graph, record = capture(monkeypatch)
    assert record().result == 3
    assert graph.calls == ["begin", "end"]


def test_a_network_that_cannot_be_recorded_is_told_the_way_out(monkeypatch):
    trouble = RuntimeError("operation not permitted when stream is capturing")
    graph, record = capture(monkeypatch, trouble)
    with pytest.raises(ModelError, match=r"cannot be recorded .*--gpu\.no-graphs or --sim") as e:
        record()
    assert e.value.__cause__ is trouble
    assert graph.calls == ["begin", "end"]


@pytest.mark.parametrize("trouble", [torch.OutOfMemoryError("full"), TypeError("a bug")])
def test_what_is_no_fault_of_recording_is_raised_as_it_is(monkeypatch, trouble):
    graph, record = capture(monkeypatch, trouble)
    with pytest.raises(type(trouble), match=str(trouble)):
        record()
    assert graph.calls == ["begin", "end"]


@pytest.mark.parametrize("kind", DRAWING)
def test_a_network_that_draws_by_itself_is_refused_clearly(kind):
    bench = lab(model=seeded(kind))
    executor = lanes_of(bench, 1)
    with pytest.raises(ModelError, match=r"draws random numbers by itself .*--simulator reference"):
        [*executor.answers(tasks(bench, train(1)))]
    executor.close()


def test_dropout_layers_are_no_draws_of_the_network_s_own():
    bench = lab(model=seeded(TinyNet, 0.3))
    executor, before = lanes_of(bench, 1), torch.get_rng_state()
    assert len([*executor.answers(tasks(bench, train(1)))]) == len(bench.shards)
    assert torch.equal(torch.get_rng_state(), before)
    executor.close()


@pytest.mark.parametrize("frozen", [["conv1.weight"], ["conv1.weight", "hidden.weight"]])
def test_frozen_layers_offer_no_gradient(frozen):
    bench = lab(model=seeded(TinyNet))
    for name in frozen:
        bench.model.get_parameter(name).requires_grad = False
    counts = {"conv1.weight": 4, "hidden.weight": 4}
    replies = answers(bench, order(bench, top_gradients(counts)))
    assert_near(*replies)
    for reply in replies:
        offered = {name: len(top) for name, top in reply.gradients.items()}
        assert offered == {name: 0 if name in frozen else 4 for name in counts}


def test_frozen_layers_keep_their_mask_when_a_device_swaps():
    bench = lab(model=seeded(TinyNet))
    bench.model.conv1.weight.requires_grad = False
    request = order(bench, prune_and_grow({"conv1.weight": 4, "hidden.weight": 4}), train(1))
    for reply in answers(bench, request):
        before, after = request.theta.mask, reply.theta.mask
        assert np.array_equal(after.indices("conv1.weight"), before.indices("conv1.weight"))
        assert not np.array_equal(after.indices("hidden.weight"), before.indices("hidden.weight"))
