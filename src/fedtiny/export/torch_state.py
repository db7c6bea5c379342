"""A trained network as a dense state dict, and a recipe that says how to build it."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fedtiny.export.network import reads_of
from fedtiny.export.source import Trained
from fedtiny.files import write_atomically, write_json
from fedtiny.runs.inputs import model_width


def recipe_of(state: Path) -> Path:
    """Where the recipe of a state dict lies."""
    return state.with_suffix(".json")


def write_torch(run: Trained, out: Path) -> tuple[Path, Path]:
    """Write the state dict to `out` and beside it a recipe, which says how to build the network."""
    state = {name: np.ascontiguousarray(array) for name, array in run.state.items()}
    reads = reads_of(run.data)
    scale = "from 0 to 1" if reads == "bytes" else "as in training"
    recipe = {
        "build": {
            "name": run.config.model,
            "shape": list(run.data.input_shape),
            "classes": len(run.data.classes),
            "width": model_width(run.config, run.data.input_shape, len(run.data.classes)),
        },
        "python": "fedtiny.models.build(**build).load_state_dict(safetensors.torch.load_file(...))",
        "input": {
            "mean": list(run.data.mean),
            "std": list(run.data.std),
            "reads": reads,
            "pixels": f"{scale}, then (pixel - mean) / std by channel",
        },
        "classes": list(run.data.classes),
        "card": run.card(run.theta()),
    }
    write_atomically(out, save(state))
    write_json(recipe_of(out), recipe)
    return out, recipe_of(out)
