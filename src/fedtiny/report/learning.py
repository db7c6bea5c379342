"""How a run learned: accuracy, loss and density by round."""

from fedtiny.report.figure import Figure, lines_of, points_of
from fedtiny.report.lines import over_rounds
from fedtiny.report.run import Run


def accuracy(run: Run) -> Figure | None:
    """Test accuracy by round, with that on the devices where it was measured."""
    series = lines_of(
        run,
        {
            "accuracy": ("test set", "accent"),
            "device_accuracy_mean": ("devices, mean", "third"),
            "device_accuracy_worst": ("worst device", "second"),
        },
    )
    if not series:
        return None
    points = points_of(run, "accuracy") or series[0].points
    best_round, best = max(points, key=lambda point: point[1])
    (first_round, first), (last_round, last) = points[0], points[-1]
    caption = (
        f"Accuracy of the global model after each round: {first:.4f} after round "
        f"{first_round:.0f}, {last:.4f} after round {last_round:.0f}. The highest on the way was "
        f"{best:.4f} (round {best_round:.0f}); the run keeps the last model, not the best."
    )
    values = [y for one in series for _, y in one.points]
    bounds = (0.0, 1.0) if max(values) > 0.5 else (0.0, max(values) * 1.1 or 1.0)
    return Figure("accuracy", "Accuracy by round", caption, over_rounds(series, bounds=bounds))


def loss(run: Run) -> Figure | None:
    """Loss on the test set and in local training."""
    wanted = {"loss": ("test set", "accent"), "train_loss": ("local training", "second")}
    series = lines_of(run, wanted)
    if not series:
        return None
    caption = (
        "Cross-entropy of the global model on the test set, and the mean over devices while they "
        "train. A gap that opens means that devices learn what others do not have."
    )
    most = max(y for one in series for _, y in one.points)
    return Figure("loss", "Loss by round", caption, over_rounds(series, bounds=(0, 1.06 * most)))


def density(run: Run) -> Figure | None:
    """Density of the whole model, and what of it can reach the output."""
    wanted = {"density": ("kept", "accent"), "effective_density": ("effective", "third")}
    series = lines_of(run, wanted)
    if not series:
        return None
    caption = (
        "Share of the prunable weights that are kept, and (effective) that also lie on a path "
        f"from input to output. The target is {run.config.density:g}."
    )
    most = max(y for one in series for _, y in one.points)
    drawn = over_rounds(series, bounds=(0, 1.15 * most or 1.0))
    return Figure("density", "Density by round", caption, drawn)
