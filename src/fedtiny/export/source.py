"""The model of a finished run, and all that goes with it into an export."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from fedtiny import __version__, methods, models
from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.data import DataSet, ImageSet
from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError, RunError
from fedtiny.export import packed
from fedtiny.export.network import TinyModel, lower, reads_of
from fedtiny.files import MAX_TENSORS, read_file, write_atomically
from fedtiny.graph.ir import Graph
from fedtiny.models import Traced
from fedtiny.runs import reading
from fedtiny.runs.folder import RunFolder, way_on
from fedtiny.runs.inputs import (
    as_arguments,
    build_model,
    check_inputs,
    fitting,
    load_data,
    load_images,
    own_inputs,
    parameters,
)
from fedtiny.runs.split import NOT_OURS, checked, load_split
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Floats, Theta, is_usable

if TYPE_CHECKING:
    from torch import nn

BY_TORCH = "fedtiny.export.onnx_torch.write(path, out, data=..., model=...)"
LOCAL = ("workers", "threads", "checkpoint_every")  # how and where a run computed, not what


class NoGraphError(ExportError):
    """A network that cannot be traced."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run: folder, config as its method ran it, data set, network and its graph."""

    folder: RunFolder
    config: Config
    data: DataSet
    network: "nn.Module"
    graph: Traced
    best: bool = False
    """Whether the best round's model is meant, not the final one."""

    @property
    def file(self) -> Path:
        """The state dict."""
        return self.folder.best if self.best else self.folder.model

    @cached_property
    def state(self) -> dict[str, Floats]:
        """The trained values, by name."""
        try:
            return dict(load(read_file(self.file, MAX_TENSORS)))
        except (OSError, SafetensorError, MemoryError, *NOT_OURS) as error:
            again = self.folder.checkpoint.exists()
            way = f"; make it again with: {way_on(self.folder)}" if again else ""
            raise RunError(f"{self.file} is missing or damaged{way}") from error

    def theta(self) -> Theta:
        """The trained values under the mask of those that are not zero."""
        pruned = self.config.pruning.depthwise
        shape = self.data.input_shape
        param_spec = models.analyze(self.network, shape, self.graph, depthwise=pruned)
        needed = {**param_spec.prunable, **param_spec.dense}
        if any(self.state.get(name, np.empty(0)).shape != s for name, s in needed.items()):
            raise RunError(f"{self.file} belongs to another model than its config names")
        if not all(is_usable(self.state[name]) for name in needed):
            raise RunError(f"{self.file} holds NaN, infinity or values too large to compute with")
        mask = Mask(param_spec, {n: np.flatnonzero(self.state[n]) for n in param_spec.prunable})
        return Theta.from_tensors(self.state, mask)

    def tiny(self, *, fold: bool = True) -> TinyModel:
        """What is shipped of it."""
        theta = self.theta()
        if not isinstance(self.graph, Graph):
            way = BY_TORCH if own_inputs(self.config) else "--format onnx"
            raise NoGraphError(
                f"this network can be exported to ONNX only, with {way} ({self.graph}); what it "
                f"learned is a plain state dict, {self.file}: load it into the network's own class"
            ) from self.graph
        net = lower(self.graph, theta, fold=fold, remove_dead=True)
        normalisation = Preparation(self.data.mean, self.data.std)
        reads = reads_of(self.data)
        return TinyModel(net, normalisation, self.data.classes, self.card(theta), reads=reads)

    def card(self, theta: Theta) -> dict[str, Any]:
        """Where the model comes from; the same for a run that was stopped and resumed."""
        result = reading.result(self.folder)
        result = result["best"] if self.best else result
        return {
            "fedtiny": __version__,
            "method": self.config.method,
            "model": self.config.model,
            "data": self.data.name,
            **{name: result[name] for name in ("accuracy", "density", "kept_weights")},
            "dense_bytes": theta.param_spec.dense_bytes,
            "config": _shared(configs.to_dict(self.config)),
        }


def tiny_model(path: Path | str, *, fold: bool = True, best: bool = False, **own: Any) -> TinyModel:
    """The model of a packed file or of a run folder, the best round's on request.

    A finished run holds its packed model, so that neither its data nor torch is needed here; with
    `fold` False, of the best round, or where that file is missing or damaged, the run's network is
    built again; data and a model of one's own are given for that.
    """
    place = Path(path)
    if place.is_file():
        return packed.read(place)
    if fold and not best:
        with suppress(ExportError):
            return packed.read(RunFolder(place).packed)
    return trained(place, best=best, **own).tiny(fold=fold)


def trained(
    path: Path | str,
    *,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    graph: Traced | None = None,
    best: bool = False,
) -> Trained:
    """A finished run with its network; a data set or a model of one's own must be given again.

    What tracing the network gave may be handed in.
    """
    check_inputs(data, model)
    folder = RunFolder.open(Path(path))
    if not folder.result.exists():
        raise RunError(f"{path} is not finished; continue it with: {way_on(folder)}")
    if best and "best" not in reading.result(folder):
        raise RunError(f"{path} has kept no best model; it was run without --save-best")
    asked = configs.resolve(reading.config(folder))
    data = _own_data(folder, asked, data) if data else _known_data(folder)
    inputs = {"data": data, "model": model}
    needed = own_inputs(asked)
    if any(inputs[name] is None for name in needed):
        untraced = f"; one that cannot be traced goes to ONNX with {BY_TORCH}"
        raise ExportError(
            f"{path} was trained with data or a network of your own; in Python, pass them: "
            f"fedtiny.load_run(path, {as_arguments(needed)}), which has .network and .export(...)"
            + (untraced if "model" in needed else "")
        )
    data = data or load_data(asked)
    own = copy.deepcopy(model)
    config = methods.create(asked).resolve(asked, lambda: parameters(asked, data, own))
    images = data.input_shape, len(data.classes)
    network = own if own and config.model == asked.model else build_model(config, *images, copies=1)
    graph = graph or models.traced(network, data.input_shape)
    return Trained(folder, config, data, network, graph, best)


def _own_data(folder: RunFolder, asked: Config, data: DataSet) -> DataSet:
    """The data that are given, which must be those of the run."""
    images = load_images(asked, data)
    checked(load_split(folder), images)
    return fitting(images, asked)


def _known_data(folder: RunFolder) -> DataSet | None:
    """What the run's packed model tells of its data: everything but the images."""
    try:
        known = packed.read(folder.packed)
    except ExportError:
        return None
    kind = np.uint8 if known.reads == "bytes" else np.float32
    blank = np.zeros((1, *known.shape), dtype=kind)
    images = ImageSet(blank, np.zeros(1, dtype=np.int64), known.classes)
    name, normal = str(known.card.get("data", "")), known.normalisation
    about = reading.about(folder) if folder.about.exists() else {}
    data = DataSet(name, images, images, normal.mean, normal.std, flips=False, crop_padding=0)
    return replace(data, layout=about.get("layout", data.layout))


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what only concerns the machine of the run."""
    shared = {name: value for name, value in config.items() if name not in LOCAL}
    shared["data"] = {name: value for name, value in shared["data"].items() if name != "root"}
    shared["device"] = {name: v for name, v in shared.get("device", {}).items() if name != "python"}
    return shared


def pack_run(path: Path | str, **own: Any) -> Path:
    """Write the packed model of a finished run into its folder, as every run ends.

    Args:
        path: The run folder.
        **own: A data set or a model of one's own, as `data` and `model`.

    Returns:
        The file.
    """
    run = trained(path, **own)
    write_atomically(run.folder.packed, packed.packed(run.tiny()))
    return run.folder.packed
