"""A model for other torch code: a dense state dict, and a JSON file that says how to build it."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from fedtiny.export.source import Trained
from fedtiny.files import write_atomically, write_json
from fedtiny.runs.inputs import model_width


def recipe_of(state: Path) -> Path:
    """Where the recipe of a state dict lies."""
    return state.with_suffix(".json")


def write(run: Trained, out: Path) -> tuple[Path, Path]:
    """Write the state dict to `out` and its recipe beside it."""
    recipe = recipe_of(out)
    state = {name: np.ascontiguousarray(array) for name, array in run.state.items()}
    write_atomically(out, save(state))
    write_json(recipe, _recipe(run))
    return out, recipe


def _recipe(run: Trained) -> dict[str, Any]:
    return {
        "build": {
            "name": run.config.model,
            "shape": list(run.data.shape),
            "classes": len(run.data.classes),
            "width": model_width(run.config, run.data.shape, len(run.data.classes)),
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
