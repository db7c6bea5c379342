"""TensorBoard: event files in the run folder, for `tensorboard --logdir RUN`."""

from collections.abc import Mapping
from typing import Any

from fedtiny.extras import require
from fedtiny.runs.tracking.tracker import Subject


class TensorBoard:
    """Scalars by round; a resumed run adds a file that takes over where the last one ended."""

    def __init__(self) -> None:
        self.writing = require("torch.utils.tensorboard", extra="tensorboard")
        self.writer: Any = None

    def open(self, subject: Subject) -> None:
        place = str(subject.folder / "tensorboard")
        self.writer = self.writing.SummaryWriter(place, purge_step=subject.rounds + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, summary: Mapping[str, float]) -> None:
        if self.writer is not None:
            self.writer.close()
