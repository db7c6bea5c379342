"""Curves and the front of several runs show what the runs spent and reached."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedtiny import methods
from fedtiny.config import Config, FleetConfig
from fedtiny.drawing import palette
from fedtiny.drawing.canvas import Area, Canvas, Dot, Line, Text
from fedtiny.drawing.panels import Abscissa, Panel, draw_shares
from fedtiny.drawing.series import Series
from fedtiny.experiments.quantities import label
from fedtiny.report.comparison import groups
from fedtiny.report.curves import accuracy_curves, accuracy_curves_of, bytes_so_far, flops_so_far
from fedtiny.report.front import PRICES, best_of, fronts, reached
from fedtiny.report.page import comparison_figures, overall_figures
from fedtiny.report.run import Run
from fedtiny.runs.folder import RunFolder


def run_of(method="fedtiny", density=0.1, accuracies=(0.2, 0.6), flops=(10, 30), **more):
    """A finished run of two devices with these accuracies; a round moves 60 bytes, 40 up."""
    records = [
        {"round_number": t + 1, "accuracy": value, "flops": cost}
        | {"bytes_down": 20, "bytes_up": 40, "answered": [0, 1], "seconds": 1.5}
        for t, (value, cost) in enumerate(zip(accuracies, flops, strict=True))
    ]
    config = Config(
        method=method, density=density, seed=more.pop("seed", 0), fleet=FleetConfig(devices=2)
    )
    result = {"accuracy": accuracies[-1]}
    run = Run(RunFolder(Path("run")), config, records, result, {}, {}, {}, None)
    return replace(run, **more)


def group_of(*runs):
    (group,) = groups(runs)
    return group


def by_name(group):
    return {figure.name: figure for figure in comparison_figures(group)}


def shapes(figure, kind):
    return [shape for shape in figure.canvas.shapes if isinstance(shape, kind)]


def tips(figure):
    return [dot.tip for dot in shapes(figure, Dot) if dot.tip]


def test_bytes_of_a_device_add_up_and_begin_with_its_selection():
    assert bytes_so_far(run_of()) == [30, 60]
    selection = {"bytes_down": 100, "bytes_up": 20}
    assert bytes_so_far(run_of(selection=selection)) == [90, 120]
    evaluated = run_of()
    evaluated.records[0]["bytes_evaluation"] = 20
    assert bytes_so_far(evaluated) == [40, 70], "what it brings need not be sent again"
    absent = run_of()
    absent.records[1]["answered"] = [1]
    assert bytes_so_far(absent) == [30, 90]
    del absent.records[0]["bytes_up"]
    assert bytes_so_far(absent) == []
    assert bytes_so_far(run_of(selection={"bytes_down": None})) == []


def test_flops_add_up():
    assert flops_so_far(run_of()) == [10, 40]
    unknown = run_of()
    unknown.records[1]["flops"] = None
    assert flops_so_far(unknown) == []


def test_curves_go_over_rounds_bytes_time_and_flops():
    group = group_of(run_of(), run_of("synflow", accuracies=(0.3, 0.5), flops=(10, 10)))
    rounds, moved, took, computed = accuracy_curves([group])
    assert tips(rounds) == [
        *("FedTiny: accuracy 0.2, round 1", "FedTiny: accuracy 0.6, round 2"),
        *("SynFlow: accuracy 0.3, round 1", "SynFlow: accuracy 0.5, round 2"),
    ]
    assert tips(moved)[:2] == ["FedTiny: accuracy 0.2, 30 B", "FedTiny: accuracy 0.6, 60 B"]
    assert tips(took)[1::2] == ["FedTiny: accuracy 0.6, 3 s", "SynFlow: accuracy 0.5, 3 s"]
    assert tips(computed) == [
        *("FedTiny: accuracy 0.2, 10 FLOPs", "FedTiny: accuracy 0.6, 40 FLOPs"),
        *("SynFlow: accuracy 0.3, 10 FLOPs", "SynFlow: accuracy 0.5, 20 FLOPs"),
    ]


def test_the_time_of_long_runs_is_told_in_minutes_or_hours():
    run = run_of()
    for record, unit in ((60, "min"), (3600, "h")):
        for line in run.records:
            line["seconds"] = 2.0 * record
        (took,) = [f for f in accuracy_curves_of(run) if f.name == "accuracy_by_time"]
        assert f"time so far, {unit}" in [text.text for text in shapes(took, Text)]
        assert tips(took)[-1].endswith("accuracy 0.6, " + ("4 min 0 s", "4 h 0 min")[unit == "h"])


def test_one_run_has_its_curves_in_the_color_of_its_method():
    found = accuracy_curves_of(run_of("feddst"))
    assert [f.name for f in found] == [
        *("accuracy_by_bytes", "accuracy_by_time", "accuracy_by_flops"),
    ]
    colors = {dot.color for figure in found for dot in shapes(figure, Dot)}
    assert colors == {palette.series("FedDST", 0)}


def test_a_long_line_tells_some_of_its_points_and_the_last():
    run = run_of(accuracies=[0.001 * t for t in range(130)], flops=[1] * 130)
    areas = shapes(accuracy_curves_of(run)[0], Area)
    assert 30 <= len(areas) <= 40
    assert areas[-1].tip == "FedTiny: accuracy 0.129, 3.9 kB"


def test_seeds_are_averaged_in_what_was_spent_and_in_what_was_reached():
    other = run_of(accuracies=(0.4, 0.8), flops=(30, 50), seed=1)
    group = group_of(run_of(), other, run_of("synflow"))
    assert tips(accuracy_curves([group])[3])[:2] == [
        *("FedTiny: accuracy 0.3, 20 FLOPs", "FedTiny: accuracy 0.7, 60 FLOPs"),
    ]


def test_what_a_run_does_not_tell_leaves_it_out_of_that_figure_only():
    silent = run_of("feddst")
    for record in silent.records:
        del record["flops"]
    group = group_of(run_of(), run_of("synflow"), silent)
    rounds, *_, computed = accuracy_curves([group])
    assert any(tip.startswith("FedDST") for tip in tips(rounds))
    assert not any(tip.startswith("FedDST") for tip in tips(computed))


def test_each_density_has_a_panel_and_of_many_the_lowest_three():
    some = [run_of(m, d) for m in ("fedtiny", "synflow") for d in (0.1, 0.2, 0.3, 0.4)]
    figure = accuracy_curves([group_of(run_of("fedavg", 1.0), *some)])[0]
    titles = [text.text for text in shapes(figure, Text) if text.text.startswith("density ")]
    assert titles == ["density 0.3", "density 0.2", "density 0.1"]
    assert "the 3 lowest" in figure.caption
    dashed = [line for line in shapes(figure, Line) if line.dashed and len(line.points) == 2]
    assert len({line.points for line in dashed if line.width == 2.2}) == 3, "in every panel"


def test_one_method_at_several_densities_has_a_line_for_each():
    figure = accuracy_curves([group_of(*(run_of(density=d) for d in (0.1, 0.2)))])[0]
    names = {tip.partition(":")[0] for tip in tips(figure)}
    assert names == {"FedTiny 0.2", "FedTiny 0.1"}
    dots = {(dot.color, dot.form, dot.opacity) for dot in shapes(figure, Dot)}
    assert {color for color, *_ in dots} == {palette.series("FedTiny", 0)}, "one method, one color"
    assert len({form for _, form, _ in dots}) == len({faint for *_, faint in dots}) == 2


def test_a_single_line_is_no_comparison():
    group = group_of(run_of(), run_of(seed=1))
    assert accuracy_curves([group]) == []
    assert fronts([group]) == []


def test_the_front_is_what_no_other_run_beats():
    runs = (
        run_of("synflow", 0.1, (0.1, 0.5), (10, 10)),
        run_of("feddst", 0.1, (0.1, 0.6), (10, 10)),
        run_of("fedtiny", 0.2, (0.1, 0.55), (20, 20)),
        run_of("synflow", 0.2, (0.1, 0.7), (10, 20)),
        run_of("fedavg", 1.0, (0.1, 0.7), (400, 400)),
    )
    group = group_of(*runs)
    best = [(one.name, one.cost, one.accuracy.mean) for one in best_of(reached([group], PRICES[0]))]
    assert best == [("FedDST 0.1", 10, 0.6), ("SynFlow 0.2", 20, 0.7)]
    figure, moved = fronts([group])
    assert (figure.name, moved.name) == ("front", "front_by_bytes")
    (line,) = [shape for shape in shapes(figure, Line) if shape.dashed and shape.width == 1.4]
    assert len(line.points) == 2
    assert figure.caption.endswith(
        "better: FedDST 0.1 (0.6000, 10 FLOPs), SynFlow 0.2 (0.7000, 20 FLOPs)."
    )
    assert len(tips(figure)) == 5


def test_costs_that_hardly_differ_are_the_same_on_the_front():
    accuracies = {200: 0.5, 201: 0.6, 300: 0.6, 400: 0.7}
    runs = [run_of("synflow", 0.001 * at, (0.1, a), (at, at)) for at, a in accuracies.items()]
    found = reached([group_of(*runs)], PRICES[0])
    assert [one.cost for one in best_of(found)] == [201, 400]


def test_runs_that_do_not_tell_their_flops_are_not_on_the_front():
    old = run_of("synflow")
    for record in old.records:
        del record["flops"]
    assert [f.name for f in fronts([group_of(run_of(), old)])] == ["front_by_bytes"]
    group = group_of(run_of(), old, run_of("feddst", result={}))
    assert [one.name for one in reached([group], PRICES[0])] == ["FedTiny 0.1"]


def test_the_size_on_the_front_is_that_of_the_packed_file():
    result = {"accuracy": 0.6, "model_bytes": 4000}
    packed = [run_of(m, packed_bytes=2000, result=result) for m in ("fedtiny", "synflow")]
    by_size = fronts([group_of(*packed)])[-1]
    assert by_size.title == "Accuracy over model size"
    assert tips(by_size)[0] == "FedTiny 0.1: accuracy 0.6, 2 kB"
    by_size = fronts([group_of(*packed, run_of("feddst", result=result))])[-1]
    assert by_size.title == "Accuracy over model size, as sent"
    assert tips(by_size)[-1] == "FedDST 0.1: accuracy 0.6, 4 kB"


def test_runs_of_other_settings_on_the_same_data_share_a_front():
    narrow = run_of("fedavg", 1.0, (0.1, 0.8))
    narrow = replace(narrow, config=replace(narrow.config, width=4))
    elsewhere = run_of("fedavg", 1.0)
    other = replace(elsewhere.config, data=replace(elsewhere.config.data, name="svhn"))
    found = groups([run_of(), run_of("synflow"), narrow, replace(elsewhere, config=other)])
    assert len(found) == 3
    (section,) = overall_figures(found).items()
    assert section[0] == "All runs on the digits"
    names = [tip.partition(":")[0] for tip in tips(section[1][0])]
    assert names == [
        *("FedTiny 0.1", "SynFlow 0.1", "FedAvg, width 4"),
    ]


def test_runs_with_recipes_of_their_own_share_curves_too():
    """One method with two recipes: a letter and a fainter line for the unusual one."""
    usual, dense = run_of(), run_of("fedavg", 1.0, (0.1, 0.8))
    train = replace(usual.config.train, optimizer="sgd", lr=0.05)
    other = replace(run_of(accuracies=(0.3, 0.7)), config=replace(usual.config, train=train))
    (drawn,) = overall_figures(groups([usual, dense, other])).values()
    figures = {figure.name: figure for figure in drawn}
    assert {"front", "accuracies", "accuracies_by_bytes", "accuracies_by_flops"} <= figures.keys()
    rounds = figures["accuracies"]
    assert {tip.partition(":")[0] for tip in tips(rounds)} == {"FedTiny", "FedTiny (A)"}
    assert rounds.caption.endswith("A: train.lr 0.05, train.optimizer sgd.")
    known = {dot.tip.partition(":")[0]: dot for dot in shapes(rounds, Dot) if dot.tip}
    plain, lettered = known["FedTiny"], known["FedTiny (A)"]
    assert plain.color == lettered.color
    assert plain.form != lettered.form


def test_where_rounds_adjust_a_plain_round_has_a_front_of_its_own():
    runs = [run_of(), run_of("synflow", accuracies=(0.1, 0.5), flops=(12, 12))]
    for run, plain in zip(runs, (10, 12), strict=True):
        for record in run.records:
            record["flops_plain"] = plain
    by_plain, by_costliest, *_ = fronts([group_of(*runs)])
    assert (by_plain.name, by_costliest.name) == ("front_by_plain_flops", "front")
    assert by_plain.caption.endswith("better: FedTiny 0.1 (0.6000, 10 FLOPs).")
    assert "SynFlow 0.1 (0.5000, 12 FLOPs)" in by_costliest.caption
    assert fronts([group_of(*runs[1:], run_of("feddst"))])[0].name == "front"


def test_a_method_has_one_color_and_one_marker_in_every_figure():
    sparse = ("fedtiny", "my_own", "another", "synflow")
    runs = [run_of(m, d) for m in sparse for d in (0.1, 0.2)] + [run_of("fedavg", 1.0)]
    figures = by_name(group_of(*runs, run_of("feddst", 0.2, result={})))
    assert len(figures) == 7
    looks = {}
    for figure in figures.values():
        for dot in shapes(figure, Dot):
            name = dot.tip.replace(" ", ":").partition(":")[0]
            if name:
                looks.setdefault(name, set()).add((dot.color, dot.form))
    assert {"FedTiny", "my_own", "another", "SynFlow"} <= looks.keys()
    assert [name for name, found in looks.items() if len(found) > 1] == []


def test_a_method_of_one_s_own_has_its_color_beside_any_others():
    one, two = (by_name(group_of(run_of("my_own"), run_of(other))) for other in ("set", "snip"))
    colors = {
        dot.color
        for figure in (*one.values(), *two.values(), *accuracy_curves_of(run_of("my_own")))
        for dot in shapes(figure, Dot)
        if dot.tip.startswith("my_own")
    }
    assert colors == {palette.method("my_own")}
    assert {*colors}.isdisjoint(palette.ROLES.values())


def test_every_method_that_is_shipped_has_a_color_of_its_own():
    names = [label(name) for name in methods.names()]
    assert [name for name in names if name not in palette.METHODS] == []
    for ground in (0, 1):
        colors = [palette.METHODS[name][ground] for name in names]
        assert len({*colors}) == len(colors)
        assert not {*colors} & {pair[ground] for pair in palette.OTHERS}, "none but methods"


@pytest.mark.parametrize(("end", "integers", "log"), [(9, False, 0), (11, False, 1), (11, True, 0)])
def test_lines_that_end_far_apart_are_drawn_on_a_logarithmic_axis(end, integers, log):
    canvas = Canvas(height=0)
    lines = [Series(str(x), "ink", ((0.5, 0.1), (x, 0.5))) for x in (1.0, float(end))]
    draw_shares(canvas, [Panel("", lines)], Abscissa("cost", integers=integers))
    written = [shape.text for shape in canvas.shapes if isinstance(shape, Text)]
    assert ("cost (logarithmic)" in written) == log
    assert ("0" in written) != log
