"""Any torch network with all its weights: its graph, its arrays, and what each backend computes."""

import copy

import numpy as np
import torch

from fedtiny.data.transforms import Preparation
from fedtiny.export.network import TinyModel
from fedtiny.export.onnx_file import onnx_bytes
from fedtiny.export.torch_model import PackedNetwork
from fedtiny.graph.arithmetic import all_steps
from fedtiny.graph.arrays import Lowered, Norm, Weights
from fedtiny.graph.node import NORMS, Kind
from fedtiny.graph.operations import OPERATIONS
from fedtiny.graph.trace import trace


def lowered(network, shape):
    """The graph of a network with the arrays that it has."""
    graph = trace(network, shape)
    state = {n: t.detach().numpy() for n, t in network.state_dict().items()}
    weights, norms, parameters = {}, {}, {}
    for node, sources in graph.read:
        if node.name in graph.weight_shapes:
            shape, bias = graph.weight_shapes[node.name], state.get(f"{node.name}.bias")
            weights[node.name] = Weights(shape, None, state[f"{node.name}.weight"].ravel(), bias)
        if node.kind in NORMS:
            parts = OPERATIONS[node.kind].tensors(node, sources)
            arrays = (state[f"{node.name}.{part}"] for part in parts)
            norms[node.name] = Norm(*arrays, epsilon=node.epsilon)
        if node.kind == Kind.PARAMETER:
            parameters[node.name] = state[node.name].ravel()
    return Lowered(graph, weights, norms, parameters)


def shaken(network, seed=0):
    """The network with norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        if tensor.ndim == 1 and tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5, generator=generator)
            if name.endswith(("bias", "mean")):
                tensor -= 1
    return network.eval()


def images_of(shape, count=3, seed=0):
    return np.random.default_rng(seed).standard_normal((count, *shape))


def by_torch(network, images):
    with torch.no_grad():
        return copy.deepcopy(network).double()(torch.from_numpy(images)).numpy()


def by_numpy(net, images):
    """In float64, of images in the shape that the network takes."""
    batch = images.reshape(len(images), *net.graph.shapes[0]).swapaxes(0, 1)
    return all_steps(net, batch)[-1][:, :, 0, 0].T


def tiny(net):
    """A model that takes its images as they are."""
    channels, classes = net.graph.shapes[0][0], net.graph.shapes[-1][0]
    normal = Preparation((0.0,) * channels, (1.0,) * channels)
    return TinyModel(net, normal, tuple(f"class {i}" for i in range(classes)), {})


def packed_network(net):
    return PackedNetwork(tiny(net), normalise=False).eval()


def by_onnx(net, images):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data, providers = onnx_bytes(tiny(net)), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(data, options, providers=providers)
    batch = images.astype(np.float32).reshape(len(images), *net.graph.shapes[0])
    return session.run(["logits"], {"image": batch})[0]


def assert_near(found, expected, share):
    """Within a share of the largest value."""
    largest = max(np.abs(expected).max(), 1e-3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=share * largest)
