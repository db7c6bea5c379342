"""MLflow: figures by round, in the store that MLFLOW_TRACKING_URI names or in the run folder."""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedtiny.config.flat import joined
from fedtiny.extras import require
from fedtiny.files import make_closed_folder

if TYPE_CHECKING:
    from fedtiny.runs.tracking import Subject

KEY = "fedtiny.key"  # the tag by which a run is found again
STORE = "mlruns"
PARAMETERS = 100  # that MLflow takes in one call
OFFLINE = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions ask for it
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MLflow:
    """Figures in the experiment MLFLOW_EXPERIMENT_NAME, or `fedtiny`.

    A resumed run goes on as the same run of MLflow.
    """

    def __init__(self) -> None:
        for name, value in OFFLINE.items():
            os.environ.setdefault(name, value)
        self.tracking = require("mlflow.tracking", extra="mlflow")
        self.entities = require("mlflow.entities", extra="mlflow")
        self.client: Any = None
        self.run = ""

    def open(self, subject: "Subject") -> None:
        self.client = self.tracking.MlflowClient(tracking_uri=_store(subject))
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedtiny"))
        known = self.client.search_runs([experiment], f"tags.`{KEY}` = '{subject.key}'")
        if known:
            self.run = known[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            return
        made = self.client.create_run(experiment, run_name=subject.name, tags={KEY: subject.key})
        self.run = made.info.run_id
        settings = [self.entities.Param(k, str(v)) for k, v in joined(subject.settings).items()]
        for start in range(0, len(settings), PARAMETERS):
            self.client.log_batch(self.run, params=settings[start : start + PARAMETERS])

    def _experiment(self, name: str) -> str:
        known = self.client.get_experiment_by_name(name)
        found: str = known.experiment_id if known else self.client.create_experiment(name)
        return found

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        figures = [self.entities.Metric(k, float(v), now, step) for k, v in values.items()]
        self.client.log_batch(self.run, metrics=figures)

    def close(self, summary: Mapping[str, float]) -> None:
        if self.run:
            self.client.set_terminated(self.run, "FINISHED" if summary else "KILLED")


def _store(subject: "Subject") -> str:
    """Where the figures go."""
    if named := os.environ.get("MLFLOW_TRACKING_URI"):
        return named
    place = subject.folder / STORE
    make_closed_folder(place)
    return place.as_uri()
