"""The final model on the test set: what it takes each class for, and how often it is right."""

import numpy as np
from numpy.typing import NDArray

from fedtiny.drawing.canvas import SMALL, Canvas, shortened, text_width
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.heat import MAX_BELOW, Map, heat, step
from fedtiny.drawing.plot import Axis, Key, Plot, legend, linear
from fedtiny.report.run import Run

MAX_CLASSES = 100  # of a matrix that can be read
BAR = 0.8  # the share of its room that a bar fills


def confusion(run: Run) -> Figure | None:
    """True classes down, predicted ones across."""
    found = run.confusion
    if found is None or not found.any() or len(found) > MAX_CLASSES:
        return None
    names = run.class_names(len(found))
    right, every = int(np.trace(found)), int(found.sum())
    shown = Map(
        names,
        found.astype(float).tolist(),
        names,
        "predicted class",
        "true class",
        "samples",
        form="{:.0f}",
        numbers=True,
    )
    caption = (
        f"{right:,} of {every:,} test samples are classified correctly (diagonal)."
        f"{_worst_confusion(found, names)}"
    )
    return Figure("confusion", "Confusion matrix", caption, heat(shown))


def _worst_confusion(found: NDArray[np.int64], names: list[str]) -> str:
    wrong = found - np.diag(np.diag(found))
    if not wrong.any():
        return ""
    true, predicted = np.unravel_index(int(wrong.argmax()), wrong.shape)
    count = f"{wrong.max():,} of {found[true].sum():,}"
    return f" Most often wrong: {names[true]} taken for {names[predicted]} ({count})."


def class_accuracy(run: Run) -> Figure | None:
    """A bar for each class, and the mean over samples as a line."""
    found = run.confusion
    if found is None or not found.any():
        return None
    names, right, samples = run.class_names(len(found)), np.diag(found), found.sum(axis=1)
    known = np.flatnonzero(samples)
    shares = right[known] / samples[known]
    mean, worst, best = right.sum() / samples.sum(), known[shares.argmin()], known[shares.argmax()]
    canvas = Canvas(height=0)
    keys = [
        Key("by class", run.color, "box"),
        Key(f"all samples {mean:.4g}", "muted", "dashed line"),
    ]
    plot = Plot(
        canvas, _class_axis(names, canvas.width), linear(0, 1, "accuracy"), legend(canvas, keys)
    )
    width = max(1.0, BAR * (plot.x.at(1) - plot.x.at(0)))
    for place, share in zip(known.tolist(), shares.tolist(), strict=True):
        count = f"{right[place]:,} of {samples[place]:,} samples"
        tip = f"class {names[place]}: accuracy {share:.4f}\n{count}"
        plot.bar(plot.x.at(place), width, 0, share, run.color, tip)
    plot.level(float(mean), "muted", 1.4, dashed=True)
    low, high = f"{shares.min():.4f}", f"{shares.max():.4f}"
    told = (
        f"{low} for every class"
        if low == high
        else f"lowest {low} (class {names[worst]}), highest {high} (class {names[best]})"
    )
    caption = f"Share of the samples of each class that the final model gets right: {told}."
    return Figure("class_accuracy", "Accuracy by class", caption, canvas)


def _class_axis(names: list[str], width: float) -> Axis:
    """As many names as there is room for, long ones turned."""
    room = (width - 80) / len(names)
    longest = max(text_width(name, SMALL) for name in names)
    turned = longest + 4 > room and not all(name.isdigit() for name in names)
    every = step((SMALL + 2 if turned else longest + 8) / room)
    return Axis(
        -0.5,
        len(names) - 0.5,
        range(0, len(names), every),
        "class",
        text=lambda place: shortened(names[round(place)], MAX_BELOW),
        turned=turned,
    )
