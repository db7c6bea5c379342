"""How a run learned, by round: accuracy, loss, density, and what it spent of privacy."""

from collections.abc import Mapping, Sequence

from fedtiny.drawing.canvas import Canvas
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.plot import Plot, legend, linear
from fedtiny.drawing.series import Series, draw_columns
from fedtiny.report.run import Run
from fedtiny.runs.metrics import number

OWN = "own"  # the color of the run's method
Shown = Mapping[str, tuple[str, str, bool]]
"""By number of a round: what it is called, its color, and whether it is dashed."""


def points_of(run: Run, key: str) -> tuple[tuple[float, float], ...]:
    """A number by round; rounds without it are left out."""
    found = ((record["round_number"], number(record, key)) for record in run.records)
    return tuple((float(round), value) for round, value in found if value is not None)


def over_rounds(series: Sequence[Series], high: float, title: str) -> Canvas:
    """Values by round, from 0 to the given one."""
    canvas = Canvas(height=0)
    top = legend(canvas, [one.key for one in series])
    rounds = [x for one in series for x, _ in one.points]
    first, last = min(rounds), max(max(rounds), min(rounds) + 1)
    x, y = linear(first, last, "round", integers=True), linear(0, high or 1.0, title)
    draw_columns(Plot(canvas, x, y, top), series)
    return canvas


def _figure(run: Run, name: str, shown: Shown, caption: str, room: float) -> Figure | None:
    """A line for each number that was recorded, told with its last value, with room above."""
    series = []
    for key, (told, role, dashed) in shown.items():
        if points := points_of(run, key):
            role = run.color if role == OWN else role
            last = f"{told} {points[-1][1]:.4g}"
            series.append(Series(told, role, points, dashed, label=last))
    if not series:
        return None
    high = max(y for one in series for _, y in one.points)
    high = 1.0 if name == "accuracy" and high > 0.5 else high * room
    drawn = over_rounds(series, high, name)
    return Figure(name, f"{name.capitalize()} by round", caption, drawn)


def accuracy(run: Run) -> Figure | None:
    """Test accuracy by round, with that on the devices if it was measured."""
    shown = {
        "accuracy": ("test set", OWN, False),
        "device_accuracy_mean": ("devices, mean", "muted", False),
        "device_accuracy_worst": ("worst device", "muted", True),
    }
    points = next(filter(None, (points_of(run, key) for key in shown)), ((0.0, 0.0),))
    best_round, best = max(points, key=lambda point: point[1])
    (first_round, first), (last_round, last) = points[0], points[-1]
    caption = (
        f"Accuracy of the global model after each round: {first:.4f} after round "
        f"{first_round:.0f}, {last:.4f} after round {last_round:.0f}. The highest on the way was "
        f"{best:.4f} (round {best_round:.0f}); the result is the last model."
    )
    return _figure(run, "accuracy", shown, caption, 1.1)


def loss(run: Run) -> Figure | None:
    """Loss on the test set and in local training."""
    shown = {"loss": ("test set", OWN, False), "train_loss": ("local training", "muted", True)}
    caption = (
        "Cross-entropy of the global model on the test set, and the mean over devices while they "
        "train. A growing gap means that devices overfit their own data."
    )
    return _figure(run, "loss", shown, caption, 1.06)


def epsilon(run: Run) -> Figure | None:
    """What was spent of privacy by round, if the run is private and has noise."""
    caption = (
        "Differential privacy of one device after each round, by the accountant "
        f"'{run.config.privacy.accountant}': the smaller, the less the model tells of a device."
    )
    return _figure(run, "epsilon", {"epsilon": ("epsilon", OWN, False)}, caption, 1.1)


def density(run: Run) -> Figure | None:
    """Density of the whole model, and what of it can reach the output."""
    shown = {
        "density": ("kept", OWN, False),
        "effective_density": ("effective", "muted", True),  # often covers the other line
    }
    caption = (
        "Share of the prunable weights that are kept, and (effective) that also lie on a path "
        f"from input to output. The target is {run.config.density:g}."
    )
    return _figure(run, "density", shown, caption, 1.15)
