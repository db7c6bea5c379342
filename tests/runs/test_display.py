"""What a run shows: plain lines, a live bar in a terminal, nothing in a notebook."""

import io
import re
import shlex

import numpy as np
import pytest
import torch
from rich.console import Console

import fedtiny
from fedtiny.errors import FedTinyError
from fedtiny.runs import formatting, reporter
from fedtiny.runs.reporter import Lines, automatic

from .tiny import TINY, StopAfter, own_data, tiny


class Live(Lines):
    def __init__(self, console):
        super().__init__(console, bar=True)


def console(width=120, **named):
    return Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True, **named)


def shown(config, out, reporter_of=Lines, **given):
    screen = console(force_terminal=reporter_of is Live)
    fedtiny.run(config, out=out, reporter=reporter_of(screen), **given)
    return screen.file.getvalue()


def test_lines_tell_the_whole_story(finished, tmp_path):
    text = shown(TINY, tmp_path / "run")
    first = text.splitlines()[0]
    assert first.startswith("fedtiny: small (width 2) to density 0.3 (0.492 of all parameters) on")
    assert first.endswith(
        "on digits, 3 devices, Dirichlet(0.5), 3 rounds; dense PyTorch: its density is so high "
        "that PyTorch is faster"
    )
    assert re.search(r"chosen candidate [12] of 2: loss \d\.\d+ \(pool .*\), density 0\.\d+", text)
    rounds = re.findall(
        r"^round (\d)/3  accuracy (\d\.\d+)  loss .* down .* up", text, re.MULTILINE
    )
    assert rounds == [(str(r["round_number"]), f"{r['accuracy']:.4f}") for r in finished.metrics]
    assert f"done: accuracy {finished.accuracy:.4f} at density {finished.density:.4f}" in text
    assert f"run folder: {tmp_path / 'run'}\n" in text
    assert f"fedtiny inspect {tmp_path / 'run'}\n" in text
    assert "\x1b" not in text
    assert "stopped" not in text


def test_lines_show_the_images_of_every_device(tmp_path):
    text = shown(tiny(rounds=1), tmp_path / "run")
    rows = [re.findall(r"\w+", line) for line in text.splitlines()]
    sizes = [int(row[1]) for row in rows if len(row) > 2 and row[0] in {"0", "1", "2"}]
    assert len(sizes) == 3
    assert sum(sizes) == 70


def test_a_long_folder_name_is_not_broken(tmp_path):
    path = tmp_path / ("x" * 150)
    assert f"fedtiny inspect {path}\n" in shown(tiny(rounds=1), path)


def test_a_folder_name_can_be_pasted_into_a_shell(tmp_path):
    path = tmp_path / "it's [my] run"
    text = shown(tiny(rounds=1), path)
    assert f"run folder: {path}\n" in text
    (hint,) = re.findall(r"fedtiny inspect (.*)\n", text)
    assert shlex.split(hint) == [str(path)]


def test_missing_devices_are_named_with_the_reason(tmp_path):
    fleet = {"fail_rate": 0.999, "min_replies": 3}
    text = shown(tiny(rounds=1, selection={"kind": "none"}, fleet=fleet), tmp_path / "run")
    (line,) = [line for line in text.splitlines() if line.startswith("round 1/1")]
    assert "(devices missing: 0, 1, 2 out of reach - too few replies, the round does not" in line
    assert "chosen candidate" not in text


def test_a_gpu_simulator_without_a_gpu_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = "there is no GPU here: the GPU simulator computes on the CPU, slowly"
    slow, usual = (
        shown(tiny(rounds=1, simulator=simulator, gpu={"precision": "fp32"}), tmp_path / simulator)
        for simulator in ("gpu", "auto")
    )
    assert told in slow
    assert told not in usual


def test_gpus_that_a_run_leaves_idle_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(reporter, "gpu_count", lambda: 4)
    text = shown(tiny(rounds=1, simulator="gpu"), tmp_path / "run")
    told = "this run takes one of 4 GPUs; all take part with: torchrun --nproc-per-node 4 -m fedt"
    assert told in text


IN_VAIN = {
    "without effect: --workers (the GPU simulator has no processes to share work with)": {
        "simulator": "gpu",
        "workers": 2,
    },
    "without effect: --device.storage, --device.remove-dead (the devices are not native)": {
        "device_backend": "torch",
        "device": {"storage": "float16", "remove_dead": True},
    },
    "without effect: --device.storage (the devices are not native)": {
        "simulator": "gpu",
        "device": {"storage": "float16"},
    },
    "without effect: --gpu.cards (a process takes one GPU; take more with torchrun "
    "--nproc-per-node N -m fedtiny)": {"simulator": "gpu", "gpu": {"cards": 2}},
    "without effect: --selection.pool-size, --selection.passes (nothing is selected)": {
        "selection": {"kind": "none", "passes": 2},
    },
    "without effect: --gpu.lanes (the devices are not simulated on a GPU)": {
        "simulator": "reference",
        "gpu": {"lanes": 2},
    },
}


@pytest.mark.parametrize("line", IN_VAIN)
def test_settings_that_nobody_reads_are_named(tmp_path, line):
    text = shown(tiny(rounds=1, **IN_VAIN[line]), tmp_path / "run")
    assert [told for told in text.splitlines() if "without effect" in told] == [line]


def test_settings_that_are_read_are_not_named(tmp_path):
    device = {"storage": "float16"}
    native = tiny(
        rounds=1, simulator="reference", workers=2, device_backend="native", device=device
    )
    lanes = tiny(rounds=1, simulator="gpu", gpu={"lanes": 2})
    for number, config in enumerate((native, lanes)):
        assert "without effect" not in shown(config, tmp_path / str(number))


def test_a_density_that_a_budget_chose_is_told(tmp_path):
    budget = {"memory_budget": "2kB", "memory_model": "paper"}
    text = shown(tiny(rounds=1, density=0.9, **budget), tmp_path / "run")
    assert re.search(r"^to fit 2kB: density 0\.18\d*$", text, re.MULTILINE)
    assert re.search(r"^memory of a device: 2 kB as the paper counts, ", text, re.MULTILINE)
    assert "to fit" not in shown(tiny(rounds=1), tmp_path / "plain")


def test_devices_own_accuracy_is_told(tmp_path):
    text = shown(tiny(rounds=1, eval_devices=True), tmp_path / "run")
    assert re.search(r"devices 0\.\d{4} \(worst 0\.\d{4}\)", text)


def test_a_round_that_is_not_measured_tells_no_accuracy(tmp_path):
    text = shown(tiny(rounds=2, eval_every=2), tmp_path / "run")
    first, second = [line for line in text.splitlines() if line.startswith("round ")]
    assert "accuracy" not in first
    assert "density" in first
    assert "accuracy" in second


class StoppedLines(Lines):
    def round_done(self, record):
        super().round_done(record)
        raise KeyboardInterrupt


def test_a_stopped_run_tells_how_to_go_on(tmp_path):
    screen = console()
    with pytest.raises(KeyboardInterrupt):
        fedtiny.run(TINY, out=tmp_path / "run", reporter=StoppedLines(screen))
    last = screen.file.getvalue().splitlines()[-1]
    assert last == f"stopped; continue with: fedtiny resume {tmp_path / 'run'}"


@pytest.mark.parametrize("reporter_of", [Lines, Live])
def test_a_run_that_would_fail_again_is_not_to_be_continued(tmp_path, reporter_of):
    screen = console(force_terminal=reporter_of is Live)
    config = tiny(fleet={"fail_rate": 0.999})
    with pytest.raises(FedTinyError, match=r"start anew with a lower --fleet\.fail-rate") as found:
        fedtiny.run(config, out=tmp_path / "run", reporter=reporter_of(screen))
    assert not found.value.retryable
    text = screen.file.getvalue()
    assert "fedtiny: small" in text
    assert "continue with" not in text


def test_a_run_that_diverges_before_its_first_round_is_not_to_be_continued(tmp_path):
    screen = console()
    config = tiny(train={"lr": 1e30, "optimizer": "sgd"})
    with pytest.raises(FedTinyError, match=r"public set.*start anew with a lower --train\.lr"):
        fedtiny.run(config, out=tmp_path / "run", reporter=Lines(screen))
    assert "continue with" not in screen.file.getvalue()


@pytest.mark.parametrize("reporter_of", [Lines, Live])
def test_a_resumed_run_tells_where_it_goes_on(stopped, reporter_of):
    screen = console(force_terminal=reporter_of is Live)
    fedtiny.resume(stopped, reporter=reporter_of(screen))
    text = screen.file.getvalue()
    assert "resumed after round 2 of 3" in text
    assert "round 3/3" in text
    assert "round 2/3  accuracy" not in text


def test_a_terminal_gets_the_same_lines_and_a_bar(finished, tmp_path):
    text = shown(TINY, tmp_path / "run", Live)
    assert "\x1b[" in text
    assert re.search(r"round \d/3 .*left", text)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert len(re.findall(r"round \d/3  accuracy", plain)) == 3
    assert f"done: accuracy {finished.accuracy:.4f}" in plain
    assert f"run folder: {tmp_path / 'run'}" in plain
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown again"


def test_a_stopped_run_gives_the_terminal_back(tmp_path):
    class StoppedLive(StoppedLines, Live):
        pass

    screen = console(force_terminal=True)
    with pytest.raises(KeyboardInterrupt):
        fedtiny.run(TINY, out=tmp_path / "run", reporter=StoppedLive(screen))
    text = screen.file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "continue with: fedtiny resume" in text


def test_the_reporter_fits_where_the_output_goes(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    assert type(automatic()) is Lines
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not automatic().progress.disable


def test_a_reporter_is_always_closed(tmp_path):
    class Closing(StopAfter):
        closed = 0

        def close(self):
            self.closed += 1

    reporter = Closing(1)
    with pytest.raises(KeyboardInterrupt):
        fedtiny.run(TINY, out=tmp_path / "run", reporter=reporter)
    assert reporter.closed == 1


@pytest.mark.parametrize("name", ["a b", "[red]", "[/x]"])
def test_class_names_are_shown_as_they_are(tmp_path, name):
    data = own_data(classes=[name, "b", "c", "d"])
    assert name in shown(tiny(rounds=1), tmp_path / "run", data=data)


def test_many_classes_are_summed_up():
    screen = console()
    screen.print(formatting.partition_table(np.ones((2, 100), dtype=np.int64)))
    text = screen.file.getvalue()
    assert "largest class" in text
    assert ["1", "100", "100", "1"] in [re.findall(r"\w+", line) for line in text.splitlines()]


NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def samples_shown(table, width, classes=()):
    screen = console(width=width)
    screen.print(formatting.partition_table(table, classes, width), soft_wrap=False)
    text = screen.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    rows = text.split("─")[-1].splitlines()
    return [[int(n) for n in line.replace("·", "0").split()] for line in rows if line.strip()]


@pytest.mark.parametrize("classes", [(), NAMES])
@pytest.mark.parametrize("width", [80, 120])
def test_no_number_of_samples_is_cut_or_broken(width, classes):
    """Of CIFAR-10: thousands of samples of ten classes."""
    table = np.random.default_rng(0).integers(0, 3000, size=(3, 10))
    expected = [[number, sum(row), *row] for number, row in enumerate(table.tolist())]
    assert samples_shown(table, width, classes) == expected


@pytest.mark.parametrize(
    ("width", "classes", "most"), [(60, 10, 3000), (80, 10, 10**6), (80, 19, 3000)]
)
def test_where_there_is_no_room_for_all_classes_they_are_summed_up(width, classes, most):
    table = np.random.default_rng(0).integers(1, most, size=(3, classes))
    found = samples_shown(table, width)
    assert found == [[n, sum(row), classes, max(row)] for n, row in enumerate(table.tolist())]


@pytest.mark.parametrize(
    ("model", "asked", "told"),
    [("lenet5", "auto", True), ("lenet5", "never", False), ("resnet8", "auto", False)],
)
def test_a_run_says_that_its_flow_is_normalized(tmp_path, model, asked, told):
    pruning = {"budgets": "flow", "flow_normalize": asked, "iterations": 2}
    config = tiny(method="fl_pqsu", model=model, width=None, rounds=1, pruning=pruning)
    assert ("flow is normalized" in shown(config, tmp_path / "run")) == told


@pytest.mark.parametrize(
    ("method", "model", "power", "told"),
    [
        ("fl_pqsu", "lenet5", 1.0, True),
        ("fl_pqsu", "lenet5", 0.0, False),
        ("fl_pqsu", "resnet8", 1.0, False),
        ("fedtiny_flow", "lenet5", None, False),  # has no batch norm
        ("fedavg", "resnet8", 1.0, True),  # prunes nothing
    ],
)
def test_a_run_says_that_no_filter_is_rescaled(tmp_path, method, model, power, told):
    pruning = {"rescale": power, "iterations": 2}
    config = tiny(method=method, model=model, width=None, rounds=1, pruning=pruning)
    assert ("without effect: --pruning.rescale" in shown(config, tmp_path / "run")) == told


@pytest.mark.parametrize(
    ("model", "floor", "told"),
    [("lenet5", 0.5, True), ("lenet5", 0.0, False), ("resnet8", 1, False)],
)
def test_a_run_says_that_there_is_no_shortcut_to_keep(tmp_path, model, floor, told):
    pruning = {"budgets": "flow", "flow_floor": floor, "iterations": 2}
    config = tiny(method="fl_pqsu", model=model, width=None, rounds=1, pruning=pruning)
    text = shown(config, tmp_path / "run")
    assert ("without effect: --pruning.flow-floor" in text) == told
