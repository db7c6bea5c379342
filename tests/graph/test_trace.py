"""The graph of a torch network, and that a run traces its network once."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

import fedtiny
from fedtiny import models
from fedtiny.cli.main import dispatch
from fedtiny.errors import ModelError
from fedtiny.export.source import pack_run
from fedtiny.graph.arithmetic import all_steps
from fedtiny.graph.ir import Graph, Kind
from fedtiny.graph.trace import trace
from fedtiny.models.analysis import profile
from fedtiny.runs.reporter import Silent

from ..export.nets import shipped, tiny_model
from ..runs.tiny import FLAGS, TINY, own_data
from .building import shape_for

SHAPE = (3, 32, 32)


def test_a_network_that_computes_with_its_weights_is_refused():
    with pytest.raises(ModelError, match=r"does not have 'numel' \(conv1\)"):
        trace(models.build("resnet18_ns", (3, 32, 32), 10, width=4), (3, 32, 32))


@pytest.mark.parametrize("name", [name for name in models.KINDS if name != "resnet18_ns"])
def test_shapes_are_those_that_torch_computes(name):
    shape = shape_for(name)
    network = models.build(name, shape, 10, width=4).eval()
    graph, found = trace(network, shape), {}
    for module_name, module in network.named_modules():
        module.register_forward_hook(
            lambda _, args, out, key=module_name: found.update({key: tuple(out.shape[1:])})
        )
    network(torch.zeros(1, *shape))
    found.pop("")
    layers = {n.name: s for n, s in zip(graph.nodes, graph.shapes, strict=True) if n.name in found}
    state = {n: tuple(t.shape) for n, t in network.state_dict().items() if t.is_floating_point()}
    assert graph.tensors.keys() == state.keys()
    for ours, torchs in ((layers, found), (graph.tensors, state)):
        for key, own in ours.items():
            if name == "cnn1d" and len(own) > len(torchs[key]) > 1:
                assert own == (*torchs[key][: len(own) - 2], 1, torchs[key][-1]), "one row"
            elif name == "vit_tiny" and ours is layers and len(torchs[key]) == 2:
                assert own == (*reversed(torchs[key]), 1), "a row for each token"
            else:
                assert own == (*torchs[key], 1, 1)[: len(own)]


def test_many_spellings_are_one_operation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

        def forward(self, x):
            x = self.first(x)
            x = torch.add(F.relu(x), torch.relu(x)) + x.relu()
            return self.last(torch.flatten(x.mean((-1, -2), keepdim=True), 1))

    kinds = [node.kind for node in trace(Net(), SHAPE).nodes]
    assert kinds.count(Kind.RELU) == 3
    assert kinds.count(Kind.ADD) == 2
    assert kinds[-3:] == [Kind.ADAPTIVE_POOL, Kind.FLATTEN, Kind.LINEAR]


@pytest.mark.parametrize("training", [True, False])
def test_tracing_leaves_the_network_as_it_is(training):
    network = models.build("vgg11", SHAPE, 10, width=2).train(training)
    state, random = network.state_dict(), torch.get_rng_state()
    trace(network, SHAPE)
    assert network.training is training
    assert torch.equal(torch.get_rng_state(), random)
    assert network.state_dict().keys() == state.keys()


class InTraining(nn.Sequential):
    """Has a step that only training has."""

    def forward(self, x):
        x = super().forward(x)
        return x + x if self.training else x


def test_a_network_is_traced_as_it_is_in_eval_mode():
    network = InTraining(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)).train()
    assert [node.kind for node in trace(network, SHAPE).nodes][-1] == Kind.LINEAR


NO_GRAPH = {
    "images of another shape": (nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(3600, 2)),
    "a linear layer over planes": (nn.Conv2d(3, 4, 32), nn.Linear(1, 2)),
    "batch norm of rows over planes": (nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(3072, 2)),
    "batch norm of planes over rows": (nn.Flatten(), nn.Linear(3072, 2), nn.BatchNorm2d(2)),
    "a pool over rows": (nn.Flatten(), nn.MaxPool2d(1), nn.Linear(3072, 2)),
    "planes as a result": (nn.Conv2d(3, 4, 3),),
    "an unknown step": (nn.Flatten(), nn.Linear(3072, 2), nn.CELU()),
}


@pytest.mark.parametrize("what", NO_GRAPH)
def test_what_torch_or_a_graph_would_refuse_has_none(what):
    with pytest.raises(ModelError):
        trace(nn.Sequential(*NO_GRAPH[what]), SHAPE)


def test_numbers_are_floats_whatever_they_were():
    body = (nn.Flatten(), nn.Linear(3072, 4), nn.BatchNorm1d(4, eps=1, momentum=1), nn.Dropout(0))
    graph = trace(nn.Sequential(*body, nn.Linear(4, 2)), SHAPE)
    assert type(graph.nodes[3].epsilon) is type(graph.nodes[3].momentum) is float
    assert type(graph.nodes[4].probability) is float
    assert Graph.from_plain(graph.to_plain()) == graph


# Views of the graph are what hooks find


def watched(model, shape):
    """What is found where there is no graph."""
    error = ModelError("no graph")
    return models.analyze(model, shape, error, depthwise=True), profile(model, shape, error)


@pytest.mark.parametrize("name", models.KINDS)
def test_what_is_prunable_and_what_it_costs_is_the_same_by_hooks(name):
    shape = shape_for(name)
    network = models.build(name, shape, 10, width=4)
    param_spec = models.analyze(network, shape, depthwise=True)
    assert (param_spec, profile(network, shape)) == watched(network, shape)
    assert repr(param_spec) == repr(watched(network, shape)[0]), "in the same order"


def test_a_network_without_a_graph_is_analyzed_by_hooks():
    network = nn.Sequential(nn.CELU(), *(nn.Conv2d(3, 3, 3) for _ in range(4)))
    assert isinstance(models.traced(network, SHAPE), ModelError)
    assert list(models.analyze(network, SHAPE).prunable) == ["2.weight", "3.weight"]
    assert profile(network, SHAPE).macs == 81 * (30**2 + 28**2 + 26**2 + 24**2)


# Once


@pytest.fixture
def traces(monkeypatch):
    """The networks that are traced, and those that run to see their layers."""
    seen = []
    original = fx.Tracer.trace
    monkeypatch.setattr(fx.Tracer, "trace", lambda t, m: seen.append(type(m)) or original(t, m))
    monkeypatch.setattr("fedtiny.models.analysis._watched", lambda *_: seen.append("hooks"))
    return seen


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_run_traces_its_network_once_and_packs_it_with_that(backend, traces, tmp_path):
    out = tmp_path / "run"
    assert dispatch(["run", *FLAGS, "--device-backend", backend, "--out", str(out)]) == 0
    assert (out / "model.packed").exists()
    assert traces == [nn.Sequential]


def test_a_default_run_traces_its_network_once(traces, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limits = ["--rounds", "1", "--width", "4", "--data.limit-train", "200"]
    assert dispatch(["run", *limits, "--train.local-epochs", "1", "--workers", "1"]) == 0
    assert len(list(tmp_path.glob("runs/*/model.packed"))) == 1
    assert len(traces) == 1


def test_a_run_of_your_own_network_traces_it_once(traces, tmp_path):
    data, model = own_data(), models.build("small", own_data().shape, 4, width=2)
    done = fedtiny.run(TINY, out=tmp_path / "run", data=data, model=model, reporter=Silent())
    assert traces == [nn.Sequential]
    assert isinstance(done.graph, Graph)
    pack_run(done.path, data=data, model=model, graph=done.graph)
    assert traces == [nn.Sequential]
    first = (done.path / "model.packed").read_bytes()
    assert pack_run(done.path, data=data, model=model).read_bytes() == first
    assert len(traces) == 2


def test_shapes_hold_for_every_batch_that_numpy_computes():
    model = tiny_model(shipped("resnet18", 0.1))
    outputs = all_steps(model.net, np.zeros((model.shape[0], 2, *model.shape[1:])))
    assert [(o.shape[0], *o.shape[2:]) for o in outputs] == list(model.net.graph.shapes)
