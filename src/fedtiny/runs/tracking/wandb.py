"""Weights & Biases; WANDB_MODE=offline keeps everything in the run folder, for `wandb sync`."""

import os
from collections.abc import Mapping
from typing import Any

from fedtiny.extras import require
from fedtiny.runs.tracking.tracker import Subject


class WeightsAndBiases:
    """Figures by round in WANDB_PROJECT, or `fedtiny`; a resumed run goes on under the same id."""

    def __init__(self) -> None:
        self.wandb = require("wandb", extra="wandb")
        self.run: Any = None

    def open(self, subject: Subject) -> None:
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedtiny"),
            name=subject.name,
            id=subject.key,
            dir=str(subject.folder),
            config=dict(subject.settings),
            resume="allow",
            settings=self.wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, summary: Mapping[str, float]) -> None:
        if self.run is not None:
            self.run.summary.update(dict(summary))
            self.run.finish()
