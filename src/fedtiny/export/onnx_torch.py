"""ONNX by torch's own exporter, for a network that has no graph."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtiny.errors import ExportError
from fedtiny.export.onnx_file import OPSET, OUTPUT, SPARSE_BELOW
from fedtiny.export.onnx_steps import INPUT
from fedtiny.export.source import Trained, trained
from fedtiny.extras import require
from fedtiny.files import write_atomically


class _Prepared(nn.Module):
    """A network that normalises the pixels it takes, from 0 to 1, itself."""

    def __init__(self, run: Trained) -> None:
        super().__init__()
        self.network, self.shape = run.network, run.data.input_shape
        mean, std = (torch.tensor(part).reshape(-1, 1, 1) for part in (run.data.mean, run.data.std))
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: Tensor) -> Tensor:
        normal = (images - self.mean) / self.std
        logits: Tensor = self.network(normal.reshape(images.shape[0], *self.shape))
        return logits


def write(path: Path | str, out: Path | str, *, plain: bool = False, **own: Any) -> Path:
    """Write the ONNX file of a finished run whose network has no graph.

    A data set or a model of one's own is given again as `data` and `model`.
    """
    write_atomically(Path(out), exported(trained(path, **own), plain=plain))
    return Path(out)


def exported(run: Trained, *, plain: bool = False) -> bytes:
    """The bytes of an ONNX file, with sparse initializers where they are smaller."""
    onnx = require("onnx", extra="onnx")
    state = {name: torch.from_numpy(array) for name, array in run.state.items()}
    run.network.load_state_dict(state, strict=False)
    made = onnx.load_from_string(_by_torch(_Prepared(run).eval(), run.data.shape))
    if not plain:
        _make_sparse(onnx, made.graph)
    data: bytes = made.SerializeToString()
    return data


def _by_torch(network: nn.Module, shape: tuple[int, ...]) -> bytes:
    """What the exporter by tracing writes; it needs no package beside torch and onnx."""
    file, axes = io.BytesIO(), {name: {0: "N"} for name in (INPUT, OUTPUT)}
    names = {"input_names": [INPUT], "output_names": [OUTPUT], "dynamic_axes": axes}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            images = (torch.zeros(2, *shape),)
            torch.onnx.export(network, images, file, dynamo=False, opset_version=OPSET, **names)
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(f"torch cannot export this network to ONNX: {why}") from error
    return file.getvalue()


def _make_sparse(onnx: Any, graph: Any) -> None:
    """Initializers of mostly zeros as values with positions."""
    for tensor in list(graph.initializer):
        array = onnx.numpy_helper.to_array(tensor)
        kept = np.flatnonzero(array)
        if array.dtype != np.float32 or array.ndim < 2 or len(kept) >= SPARSE_BELOW * array.size:
            continue
        values = onnx.numpy_helper.from_array(array.reshape(-1)[kept], tensor.name)
        positions = onnx.numpy_helper.from_array(kept, f"{tensor.name}.positions")
        graph.sparse_initializer.append(
            onnx.helper.make_sparse_tensor(values, positions, list(array.shape))
        )
        graph.initializer.remove(tensor)
