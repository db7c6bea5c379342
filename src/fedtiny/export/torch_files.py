"""A model for other torch code: a dense state dict, and a JSON file that says how to build it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from fedtiny import models
from fedtiny.errors import ExportError
from fedtiny.export.source import Trained
from fedtiny.extras import require
from fedtiny.runs.folder import read_json, write_atomically, write_json
from fedtiny.runs.inputs import model_width

if TYPE_CHECKING:
    from torch import nn


def recipe_of(state: Path) -> Path:
    """Where the recipe of a state dict lies."""
    return state.with_suffix(".json")


def write(run: Trained, out: Path) -> list[Path]:
    """Write the state dict to `out` and its recipe beside it."""
    recipe = recipe_of(out)
    state = {name: np.ascontiguousarray(array) for name, array in run.state.items()}
    write_atomically(out, save(state))
    write_json(recipe, _recipe(run))
    return [out, recipe]


def read(path: Path | str, model: "nn.Module | None" = None) -> "nn.Module":
    """The network of such files; one that fedtiny does not know by name must be given."""
    place = Path(path)
    recipe = read_json(recipe_of(place))
    network = model or _built(recipe)
    torch = require("torch", extra="torch")
    try:
        state = {name: torch.from_numpy(array) for name, array in load_file(place).items()}
        network.load_state_dict(state)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ExportError(f"{place} is damaged, or is not the model of its JSON file") from error
    return network.eval()


def _recipe(run: Trained) -> dict[str, Any]:
    return {
        "build": {
            "name": run.config.model,
            "shape": list(run.data.shape),
            "classes": len(run.data.classes),
            "width": model_width(run.config, run.data),
        },
        "python": "fedtiny.models.build(**build).load_state_dict(safetensors.torch.load_file(...))",
        "input": {
            "mean": list(run.data.mean),
            "std": list(run.data.std),
            "pixels": "from 0 to 1, then (pixel - mean) / std by channel",
        },
        "classes": list(run.data.classes),
        "card": run.card(run.theta()),
    }


def _built(recipe: dict[str, Any]) -> "nn.Module":
    try:
        build = recipe["build"]
        shape = tuple(int(side) for side in build["shape"])
        return models.build(str(build["name"]), shape, int(build["classes"]), width=build["width"])
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError("the JSON file does not say how to build the model") from error
