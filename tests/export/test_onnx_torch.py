"""ONNX of networks that have no graph."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from fedtiny.errors import ExportError, ModelError
from fedtiny.export.onnx_torch import exported
from fedtiny.graph.trace import trace

from .nets import assert_close

SHAPE = (1, 8, 8)


class Transformer(nn.Module):
    """PyTorch's own transformer layers and a recurrent one, over patches."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.patches = nn.Conv2d(1, 16, 4, stride=4)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.recurrent = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.encoder(self.patches(x).flatten(2).transpose(1, 2))
        x, _ = self.attention(x, x, x, need_weights=False)
        x, _ = self.recurrent(x)
        return self.head(x.mean(1))


class Sorted(nn.Module):
    """Something that ONNX has no operator for."""

    def forward(self, x):
        return torch.linalg.eigvalsh(x[:, 0])


def finished(network):
    """What a run leaves of a network."""
    state = {name: t.numpy() for name, t in network.state_dict().items()}
    data = SimpleNamespace(shape=SHAPE, input_shape=SHAPE, mean=(0.5,), std=(0.25,))
    return SimpleNamespace(network=network, state=state, data=data)


def test_layers_that_no_graph_has_are_exported_by_torch():
    torch.manual_seed(0)
    network = Transformer().eval()
    with pytest.raises(ModelError):
        trace(network, SHAPE)
    with torch.no_grad():
        network.head.weight[:, 1:] = 0
    data = exported(finished(network))
    images = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy((images - 0.5) / 0.25)).numpy()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert_close(session.run(["logits"], {"image": images})[0], expected)
    assert torch.backends.mha.get_fastpath_enabled(), "as it was"
    sparse = onnx.load_from_string(data).graph.sparse_initializer
    assert [tuple(each.dims) for each in sparse] == [(3, 16)]
    assert not onnx.load_from_string(
        exported(finished(network), plain=True)
    ).graph.sparse_initializer


def test_what_torch_cannot_export_either_is_told():
    with pytest.raises(ExportError, match=r"torch cannot export this network to ONNX: .*eigvalsh"):
        exported(finished(Sorted()))
