"""What came of a run: read, drawn, reported and exported."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.drawing.figure import Figure
from fedtiny.errors import ConfigError, DataError, RunError, did_you_mean
from fedtiny.export import formats
from fedtiny.export.network import Activations, Values, as_samples, reads_of
from fedtiny.export.source import Trained, trained
from fedtiny.extras import require
from fedtiny.models import Traced
from fedtiny.report.figures import figures
from fedtiny.report.run import read
from fedtiny.report.write import write_report
from fedtiny.runs import metrics, reading, runner
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record
from fedtiny.runs.split import NOT_OURS
from fedtiny.runs.tracking import figures as numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from pandas import DataFrame
    from torch import nn

Format = Literal["packed", "onnx", "torch", "c", "cmake", "platformio", "zephyr"]

AT_ONCE = 256  # samples that are predicted together


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What came of a run, which lies in a folder of its own.

    :func:`fedtiny.run` and :func:`fedtiny.resume` return one at the end of a run,
    :func:`fedtiny.load_run` that of any run folder. A run that is not finished has what its last
    round measured.

    Example:
        >>> config = fedtiny.Config(model="small", width=2, rounds=2, workers=1)
        >>> result = fedtiny.run(config, out="runs/first")
        >>> result.finished, len(result.metrics)
        (True, 2)
        >>> result.metrics[-1]["accuracy"] == result.accuracy
        True
    """

    path: Path
    """The run folder."""
    config: Config
    """The settings of the run, with presets and defaults filled in."""
    accuracy: float
    """Share of the test samples that the final model gets right; nan if nothing was measured."""
    loss: float
    """Cross-entropy of the final model on the test set; nan if nothing was measured."""
    density: float
    """Share of the prunable weights that the final model keeps; nan before the first round."""
    metrics: list[Record]
    """A record for each round, as in the file metrics.jsonl."""
    selection: dict[str, Any]
    """Which candidate coarse pruning chose, with all losses; empty if it asked no device."""
    finished: bool = True
    """Whether all rounds are done; :func:`fedtiny.resume` goes on with a run that is not."""
    _own: Mapping[str, Any] = field(default_factory=dict)
    """A data set and a model of one's own, which exports need again."""
    _ended: runner.Outcome | None = None
    """What the run left in memory, if it ended here."""

    @cached_property
    def network(self) -> "nn.Module":
        """The trained network, on the CPU, for normalized input; pruned weights are exactly 0.

        :meth:`predict` takes samples as they were measured. Of a run that was loaded, the network
        is built anew and read from the run folder.

        Raises:
            RunError: The run is not finished, or its model is damaged.
            ExportError: Data or network are one's own and were not given to
                :func:`fedtiny.load_run` again.
        """
        if self._ended is not None:
            return self._ended.network
        run = self._trained
        torch = require("torch", extra="torch")
        state = {name: torch.from_numpy(value) for name, value in run.state.items()}
        try:
            run.network.load_state_dict(state)
        except (RuntimeError, *NOT_OURS) as error:
            raise RunError(f"{run.file} belongs to another model than its config names") from error
        return run.network.eval()

    @cached_property
    def _trained(self) -> Trained:
        return trained(self.path, **self._own)

    def predict(self, samples: "ArrayLike") -> "NDArray[np.int64]":
        """The class of each sample by its number, as the run's own test gives it.

        Args:
            samples: Images, sequences or rows of a table in the units and the layout of the
                training data and of the size that the network reads.

        Returns:
            [N], whole numbers from 0.

        Raises:
            DataError: A sample holds nan or inf.
            ExportError: The samples are not as those of the training data.
            RunError: The run is not finished, or its model is damaged.

        Example:
            >>> config = fedtiny.Config(model="small", width=2, rounds=1, workers=1)
            >>> result, digits = fedtiny.run(config, out="runs/asked"), fedtiny.data.load("digits")
            >>> right = result.predict(digits.test.images) == digits.test.labels
            >>> bool(right.mean() == result.accuracy)
            True
        """
        torch = require("torch", extra="torch")
        from fedtiny.devices.torch_layers import Transform

        data = self._trained.data
        if not np.isfinite(array := np.asarray(samples)).all():
            raise DataError("samples must hold finite numbers, but hold nan or inf")
        held = as_samples(array, data.shape, reads_of(data))
        network, transform = self.network.eval(), Transform.of(data, augment=False)
        found = [np.empty(0, np.int64)]
        with torch.no_grad():
            for start in range(0, len(held), AT_ONCE):
                batch = torch.from_numpy(held[start : start + AT_ONCE])
                found.append(network(transform.normalise(batch)).argmax(1).numpy())
        return np.concatenate(found)

    @property
    def graph(self) -> Traced | None:
        """The graph of the network, or why it cannot be told; None of a run that was loaded."""
        return self._ended.graph if self._ended else None

    def __repr__(self) -> str:
        done = f"{len(self.metrics)} of {self.config.rounds} rounds"
        return (
            f"<Result {self.config.method} on {self.config.data.name}: accuracy "
            f"{self.accuracy:.4f} at density {self.density:.4f}, {done}, {str(self.path)!r}>"
        )

    def plot(self, name: str = "accuracy") -> Figure:
        """A figure of the run, shown at once in a notebook.

        Args:
            name: `accuracy` or `loss` over rounds, `confusion`, `class_accuracy`,
                `accuracy_by_bytes`, `accuracy_by_time`, `accuracy_by_flops`, `cost`, `partition`,
                `device_spread`, `pool`, `pool_layers`, `density`, `adjustments`, `layers` or
                `adjusted_layers`: the figures of the report.

        Returns:
            The figure; `figure.save(path)` writes it as SVG or PNG.

        Raises:
            ConfigError: The run has no such figure.

        Example:
            >>> config = fedtiny.Config(model="small", width=2, rounds=2, workers=1)
            >>> figure = fedtiny.run(config, out="runs/plotted").plot()
            >>> figure.title
            'Accuracy by round'
            >>> figure.save("accuracy.svg").name
            'accuracy.svg'
        """
        drawn = figures(read(RunFolder.open(self.path))).values()
        found = {figure.name: figure for section in drawn for figure in section}
        if name not in found:
            known = ", ".join(found) or "none before its first round"
            hint = did_you_mean(name, found)
            raise ConfigError(f"this run has no figure '{name}' (there is: {known}){hint}")
        return found[name]

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report: one HTML page, and its figures beside it.

        Args:
            out: The page; default: report.html in the run folder.

        Returns:
            The page that was written.

        Example:
            >>> config = fedtiny.Config(model="small", width=2, rounds=1, workers=1)
            >>> fedtiny.run(config, out="runs/reported").report().as_posix()
            'runs/reported/report.html'
        """
        place = None if out is None else Path(out)
        return write_report([RunFolder.open(self.path)], place).page

    def export(
        self,
        format: Format = "packed",
        out: Path | str | None = None,
        *,
        values: Values | None = None,
        fold: bool = True,
        plain: bool = False,
        best: bool = False,
        activations: Activations | None = None,
        calibrate: Path | str | None = None,
    ) -> Path:
        """Write the trained model for use elsewhere.

        Args:
            format: `packed`: one small file for :func:`fedtiny.load` and `fedtiny predict`; `onnx`:
                with sparse initializers; `torch`: a dense state dict and how to build it; `c`: C99
                source without dependencies; `cmake`, `platformio`, `zephyr`: that source in a
                project for a board.
            out: The file, or for C code the folder; default: in the run folder. Nothing that exists
                at a place that is given is written over.
            values: How weights are held: packed `fp32` (default), `fp16` or `int8`; c `int8`
                (default) or `fp32`.
            fold: Make batch norm part of the layer before it.
            plain: ONNX without sparse initializers.
            best: The best round's model, of a run with `save_best`.
            activations: `int8`: packed, c and onnx compute with integers, their ranges measured on
                the run's public set.
            calibrate: Images that measure these ranges instead: an .npz file, or a folder of images
                by class.

        Returns:
            Where the model is now.

        Raises:
            ExportError: The model cannot be written so, or something is there already.
            RunError: The run is not finished.

        Example:
            >>> config = fedtiny.Config(model="small", width=2, rounds=1, workers=1)
            >>> result = fedtiny.run(config, out="runs/exported")
            >>> sorted(file.name for file in result.export("c").iterdir())[:2]
            ['main.c', 'model.c']
            >>> fedtiny.load(result.export()).classes[:3]
            ('0', '1', '2')
        """
        place = None if out is None else Path(out)
        images = None if calibrate is None else Path(calibrate)
        order = formats.Order(
            self.path, format, place, values, fold, plain, best, activations, images
        )
        formats.export(order, graph=self.graph, **self._own)
        return order.place

    def metrics_frame(self) -> "DataFrame":
        """The rounds as a pandas DataFrame, for tables and plots of your own.

        Returns:
            A row for each round, by number from 1. Columns are the numbers of a record, with the
            density of each layer as `layer_density/NAME` and how many devices `answered` and
            `failed`.

        Raises:
            FedTinyError: pandas is not installed.

        Example:
            >>> config = fedtiny.Config(model="small", width=2, rounds=2, workers=1)
            >>> frame = fedtiny.run(config, out="runs/framed").metrics_frame()
            >>> frame.index.tolist()
            [1, 2]
            >>> frame[["accuracy", "density", "bytes_up"]].shape
            (2, 3)
        """
        rows = [
            {**numbers(record), **{key: len(record.get(key, ())) for key in ("answered", "failed")}}
            for record in self.metrics
        ]
        pandas = require("pandas", extra="pandas")
        rounds = pandas.RangeIndex(1, len(rows) + 1, name="round")
        frame: DataFrame = pandas.DataFrame(rows, index=rounds)
        return frame


def load_run(
    path: Path | str, *, data: DataSet | None = None, model: "nn.Module | None" = None
) -> Result:
    """The result of a run folder, whether its run is finished or not.

    Args:
        path: The run folder, as `fedtiny run` or :func:`fedtiny.run` made it.
        data: The data set, if it was one of your own; only exports need it.
        model: The network, if it was one of your own; only `network` and exports need it.

    Returns:
        The result; `finished` says whether all rounds are done.

    Raises:
        RunError: This is not a run folder, or a file of it is damaged.

    Example:
        >>> config = fedtiny.Config(model="small", width=2, rounds=2, workers=1)
        >>> result = fedtiny.run(config, out="runs/loaded")
        >>> again = fedtiny.load_run("runs/loaded")
        >>> again.accuracy == result.accuracy, again.finished
        (True, True)
    """
    folder = RunFolder.open(Path(path))
    ended = reading.result(folder) if folder.result.exists() else {}
    selection = reading.selection(folder) if folder.selection.exists() else {}
    own = {"data": data, "model": model}
    found = so_far(folder, reading.config(folder), metrics.read(folder), ended)
    return replace(found, selection=selection, finished=bool(ended), _own=own)


def so_far(
    folder: RunFolder, config: Config, records: list[Record], ended: Record | None = None
) -> Result:
    """What is known of a run after these rounds, or at its end."""
    measured = [record for record in records if record.get("accuracy") is not None]
    last, before = (rounds[-1] if rounds else {} for rounds in (records, measured))
    known = {**last, **{key: before.get(key) for key in ("accuracy", "loss")}, **(ended or {})}
    accuracy, loss, density = (_real(known, key) for key in ("accuracy", "loss", "density"))
    return Result(folder.path, config, accuracy, loss, density, records, {}, finished=False)


def _real(record: Record, key: str) -> float:
    value = record.get(key)
    return nan if value is None else float(value)


def of_run(ended: runner.Outcome, **own: Any) -> Result:
    """The result of a run that ended in this process."""
    accuracy, loss, density = (_real(vars(ended), key) for key in ("accuracy", "loss", "density"))
    found = Result(
        ended.path, ended.config, accuracy, loss, density, ended.metrics, ended.selection
    )
    return replace(found, _own=own, _ended=ended)
