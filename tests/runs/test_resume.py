"""A run that stopped goes on to the same end."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedtiny
from fedtiny import methods
from fedtiny.cli.main import dispatch
from fedtiny.errors import FedTinyError, RunError
from fedtiny.runs.reporter import Silent

from .forgery import open_forged, sign
from .tiny import TINY, TRAINING, differences, essence, lines, locked_elsewhere, stop, tiny, train


def resume(path, **given):
    return fedtiny.resume(path, reporter=Silent(), **given)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_stopped_run_resumes_to_the_same_end(finished, tmp_path, rounds):
    path = stop(TINY, tmp_path / "stopped", rounds)
    assert len(resume(path).metrics) == 3
    assert differences(finished.path, path) == []


@pytest.mark.parametrize("rounds", [1, 3])
def test_rounds_since_the_last_checkpoint_are_done_again(tmp_path, rounds):
    config = tiny(rounds=4, checkpoint_every=2, eval_devices=True, fleet={"fail_rate": 0.2})
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", rounds)
    resume(path)
    assert differences(whole, path) == []


def test_a_memory_budget_is_worked_out_to_the_same_density_again(tmp_path):
    config = tiny(memory_budget="2kB", memory_model="paper")
    whole = train(config, tmp_path / "whole")
    path = stop(config, tmp_path / "stopped", 1)
    resume(path)
    assert differences(whole.path, path) == []
    assert whole.density <= whole.config.density == pytest.approx(0.18, abs=0.01)


@pytest.mark.parametrize("kind", ["vanilla", "none"])
def test_other_ways_of_choosing_resume_too(tmp_path, kind):
    config = tiny(selection={"kind": kind})
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", 1)
    resume(path)
    assert differences(whole, path) == []


@pytest.mark.parametrize("method", ["fedtiny", "feddst"])
@pytest.mark.parametrize("robustness", [{"mean": "median"}, {"mean": "trimmed", "clip_norm": 0.5}])
def test_robust_means_resume_too(tmp_path, method, robustness):
    config = tiny(method=method, robustness=robustness)
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", 1)
    resume(path)
    assert differences(whole, path) == []
    plain = train(tiny(method=method), tmp_path / "plain").path
    assert "model" in differences(whole, plain), "or the settings were not followed"


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("method", ["fedtiny", "feddst"])
def test_every_way_of_training_resumes_to_the_same_end(tmp_path, method, name):
    config = tiny(method=method, rounds=4, checkpoint_every=2, **TRAINING[name])
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", 3)
    resume(path)
    assert differences(whole, path) == []
    plain = train(tiny(method=method, rounds=4, checkpoint_every=2), tmp_path / "plain").path
    what = "best" if name == "best" else "model"
    assert what in differences(whole, plain), "or the settings were not followed"


def test_a_run_with_an_average_goes_on_from_its_last_model(tmp_path):
    server = {"optimizer": "fedavgm", "average": "ema", "average_start": 0}
    whole = train(tiny(rounds=3, server=server), tmp_path / "whole").path
    path = train(tiny(rounds=2, server=server), tmp_path / "run").path
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    resume(path)
    assert lines(path)[2]["accuracy"] == lines(whole)[2]["accuracy"]
    assert {"model", "config"}.isdisjoint(differences(whole, path))


EVERYTHING = {
    "save_best": True,
    "train": {"lr_schedule": "cosine", "decay_norms": False, "proximal_mu": 0.1, "batch_size": 8},
    "server": {"optimizer": "fedadam", "average": "ema", "average_start": 0},
}


@pytest.mark.parametrize("training", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("method", sorted(methods.names().keys() - {"fedtiny"}))
def test_every_method_resumes_to_the_same_end(tmp_path, method, training):
    density = 0.9 if method == "small_model" else 0.3  # a third of this small one is none
    pruning = {"iterations": 3, "r_stop": 1}
    pool = {"pool_size": 3}  # one of each kind
    config = tiny(
        rounds=2, method=method, density=density, pruning=pruning, selection=pool, **training
    )
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", 1)
    resume(path)
    assert differences(whole, path) == []


def test_resuming_with_other_workers_changes_nothing(finished, stopped):
    text = (stopped / "config.toml").read_text()
    (stopped / "config.toml").write_text(text.replace("workers = 1", "workers = 2"))
    resume(stopped)
    assert differences(finished.path, stopped) == ["config"]


@pytest.mark.parametrize("progressive", [False, True])
def test_bytes_that_are_really_encoded_are_the_same_after_resuming(tmp_path, progressive):
    config = tiny(fleet={"wire": "encode"}, pruning={"progressive": progressive})
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", 1)
    resume(path)
    assert differences(whole, path) == []


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    result = train(TINY, tmp_path / "run")
    before = essence(result.path)
    again = resume(result.path)
    assert essence(result.path) == before
    assert (again.accuracy, again.density) == (result.accuracy, result.density)


def test_the_saved_partition_is_used_and_not_a_new_one(stopped):
    split, told = open_forged(stopped / "partition.safetensors")
    first, second = split["offsets"][1:3]
    swapped = {
        **split,
        "indices": np.concatenate(
            [split["indices"][first:second], split["indices"][:first], split["indices"][second:]]
        ),
        "offsets": np.array([0, second - first, second, split["offsets"][3]]),
        "table": split["table"][[1, 0, 2]],
    }
    sign(stopped / "partition.safetensors", swapped, told)
    watcher = Watcher()
    fedtiny.resume(stopped, reporter=watcher)
    used, _ = watcher.assembly.split.devices.flat()
    assert used.tolist() == swapped["indices"].tolist()
    assert watcher.assembly.split.public.tolist() == split["public"].tolist()
    assert load_file(stopped / "partition.safetensors")["indices"].tolist() == used.tolist()


class Watcher(Silent):
    def started(self, assembly, folder, records):
        self.assembly, self.records = assembly, [record["round_number"] for record in records]


def test_the_reporter_hears_of_the_rounds_before(stopped):
    watcher = Watcher()
    fedtiny.resume(stopped, reporter=watcher)
    assert watcher.records == [1, 2]


def test_more_rounds_can_be_asked_for_in_the_config(finished, tmp_path):
    path = train(tiny(rounds=2), tmp_path / "run").path
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    resume(path)
    assert differences(finished.path, path) == []


def test_a_run_that_another_process_works_on_is_left_alone(stopped):
    before = lines(stopped)
    complaint = r"another process is working on .*stopped"
    with locked_elsewhere(stopped), pytest.raises(RunError, match=complaint):
        resume(stopped)
    assert lines(stopped) == before
    assert len(resume(stopped).metrics) == 3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.toml", lambda data: data[:30]),
        ("partition.safetensors", lambda data: data[:-9]),
        ("partition.safetensors", lambda data: b""),
        ("selection.json", lambda data: data[:20]),
        ("selection.json", None),
        ("metrics.jsonl", lambda data: b'{"round_number": 1, "acc\n' + data),
        ("checkpoint.safetensors", lambda data: b""),
        ("checkpoint.safetensors", lambda data: data[:60]),
        ("checkpoint.safetensors", lambda data: data[:-9]),
        ("checkpoint.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        ("checkpoint.safetensors", None),
        ("metrics.jsonl", lambda data: b"\xff\xfe\n" + data),
        ("metrics.jsonl", lambda data: b"{}\n" + data),
        ("metrics.jsonl", lambda data: data.partition(b"\n")[2]),
        ("metrics.jsonl", None),
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(stopped, name, change):
    path = stopped / name
    data = path.read_bytes()
    path.unlink() if change is None else path.write_bytes(change(data))
    left = path.read_bytes() if path.exists() else None
    with pytest.raises(FedTinyError, match=name) as raised:
        resume(stopped)
    assert "\n" not in str(raised.value)
    assert (path.read_bytes() if path.exists() else None) == left
    path.write_bytes(data)
    assert len(resume(stopped).metrics) == 3


def test_rounds_without_a_checkpoint_are_kept_and_the_way_to_start_anew_is_told(stopped):
    (stopped / "checkpoint.safetensors").unlink()
    before = {file.name: file.read_bytes() for file in stopped.iterdir()}
    complaint = r"missing, and with it what 2 rounds .* fedtiny run .*stopped/config\.toml"
    with pytest.raises(RunError, match=complaint):
        resume(stopped)
    assert {file.name: file.read_bytes() for file in stopped.iterdir()} == before


def test_a_run_that_stopped_before_its_first_checkpoint_begins_again(finished, tmp_path):
    class Early(Silent):
        def started(self, assembly, folder, records):
            raise KeyboardInterrupt

    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedtiny.run(TINY, out=path, reporter=Early())
    assert not (path / "checkpoint.safetensors").exists()
    resume(path)
    assert differences(finished.path, path) == []


def test_a_run_at_its_end_without_metrics_is_refused_clearly(tmp_path):
    path = stop(TINY, tmp_path / "run", 3)
    (path / "metrics.jsonl").unlink()
    with pytest.raises(FedTinyError, match=r"metrics\.jsonl"):
        resume(path)


@pytest.mark.parametrize("name", ["indices", "public"])
def test_a_partition_of_images_that_do_not_exist_is_refused_clearly(stopped, name):
    split, told = open_forged(stopped / "partition.safetensors")
    split[name][3] = 10**6
    sign(stopped / "partition.safetensors", split, told)
    with pytest.raises(FedTinyError, match="is not the one that this run was started with"):
        resume(stopped)


@pytest.mark.parametrize("cut", [1, 9, 300])
def test_a_cut_last_line_of_metrics_is_no_obstacle(finished, stopped, cut):
    path = stopped / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    resume(stopped)
    assert differences(finished.path, stopped) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b'{"accuracy": "high"}', b"[1]"])
def test_a_damaged_result_is_made_again(finished, tmp_path, damage):
    path = shutil.copytree(finished.path, tmp_path / "run")
    (path / "result.json").write_bytes(damage)
    resume(path)
    assert differences(finished.path, path) == []


def edited(path, old, new):
    text = (path / "config.toml").read_text()
    assert old in text
    (path / "config.toml").write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('method = "fedtiny"', 'method = "fedavg"', "method was fedtiny and is fedavg"),
        ("devices = 3", "devices = 2", r"fleet\.devices was 3 and is 2"),
        ("seed = 0", "seed = 1", "seed was 0 and is 1"),
        ("width = 2", "width = 4", "width was 2 and is 4"),
        ("width = 2\n", "width = 2\nflops_budget = '3%'\n", "flops_budget was left out and is 3%"),
        ("local_epochs = 1", "local_epochs = 2", r"train\.local_epochs was 1 and is 2"),
    ],
)
def test_a_config_edited_in_a_stopped_run_is_refused(stopped, old, new, told):
    edited(stopped, old, new)
    with pytest.raises(RunError, match=f"was edited after the run was begun: {told}; put it back"):
        resume(stopped)
    edited(stopped, new, old)
    assert len(resume(stopped).metrics) == 3


def test_an_edited_config_is_refused_before_the_first_checkpoint_too(stopped):
    for name in ("checkpoint.safetensors", "metrics.jsonl", "selection.json"):
        (stopped / name).unlink()
    edited(stopped, "seed = 0", "seed = 1")
    with pytest.raises(RunError, match="seed was 0 and is 1"):
        resume(stopped)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rounds = 3", "rounds = 4"),
        ("workers = 1", "workers = 2"),
        ("eval_every = 1", "eval_every = 3"),
        ("eval_devices = false", "eval_devices = true"),
        ("checkpoint_every = 1", "checkpoint_every = 2"),
        ("save_best = false", "save_best = true"),
    ],
)
def test_what_a_run_does_not_depend_on_may_be_edited(finished, stopped, old, new):
    edited(stopped, old, new)
    resume(stopped)
    assert ("model" in differences(finished.path, stopped)) == ("rounds" in old)


EARLIER = "was made by an earlier version of fedtiny, .*; begin the run again"


@pytest.mark.parametrize(
    ("format", "told"), [(None, EARLIER), ("2", "has format '2'; this version reads '1'")]
)
@pytest.mark.parametrize("command", ["resume", "inspect", "report", "export"])
def test_a_folder_of_another_version_is_refused(stopped, capsys, command, format, told):
    versions = json.loads((stopped / "versions.json").read_text())
    assert versions.pop("format") == "1"
    own = {} if format is None else {"format": format}
    (stopped / "versions.json").write_text(json.dumps(own | versions))
    assert dispatch([command, str(stopped)]) == 1
    assert re.fullmatch(f"fedtiny: error: {stopped} {told}\n", capsys.readouterr().err)


def test_a_folder_without_a_setting_of_today_is_refused(stopped):
    split, told = open_forged(stopped / "partition.safetensors")
    del told["settings"]["robustness.bound"]
    sign(stopped / "partition.safetensors", split, told)
    with pytest.raises(RunError, match=EARLIER):
        resume(stopped)


def test_a_run_that_was_killed_before_it_told_its_format_goes_on(finished, stopped):
    for path in stopped.iterdir():
        if path.name != "config.toml":
            path.unlink()
    resume(stopped)
    assert differences(finished.path, stopped) == []
    assert (stopped / "versions.json").exists()


@pytest.mark.parametrize("name", ["public", "indices", "offsets", "table", "seal"])
def test_a_flipped_bit_of_the_partition_is_noticed(stopped, name):
    path = stopped / "partition.safetensors"
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8 : 8 + header])[name]["data_offsets"]
    data[8 + header + (first + last) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"partition\.safetensors is damaged; put back a copy"):
        resume(stopped)


def test_a_partition_that_is_lost_is_not_drawn_again(stopped):
    (stopped / "partition.safetensors").unlink()
    with pytest.raises(RunError, match=r"partition\.safetensors is missing"):
        resume(stopped)


def test_a_checkpoint_of_another_model_is_refused(stopped, tmp_path):
    other = stop(tiny(width=4), tmp_path / "other", 2)
    shutil.copy(other / "checkpoint.safetensors", stopped)
    with pytest.raises(RunError, match="belongs to another model than its config names"):
        resume(stopped)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        resume(tmp_path)
    with pytest.raises(RunError, match=r"there is no .*nowhere; give the folder of a run"):
        resume(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_stops_a_run_in_one_sentence_and_resumes(finished, tmp_path, monkeypatch):
    fail_at(monkeypatch, ".checkpoint", OSError(28, "No space left on device"), call=2)
    with pytest.raises(RunError, match=r"cannot write .*checkpoint\.safetensors: No space left"):
        train(TINY, tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert differences(finished.path, tmp_path / "run") == []


def fail_at(monkeypatch, name, error, call):
    """Fail at the so-manieth opening of a file whose name begins like this."""
    really_open, calls = os.open, []

    def open_or_fail(path, *arguments, **named):
        if Path(path).name.startswith(name):
            calls.append(path)
            if len(calls) == call:
                raise error
        return really_open(path, *arguments, **named)

    monkeypatch.setattr(os, "open", open_or_fail)


def test_a_folder_that_was_moved_goes_on_as_well(finished, stopped):
    moved = stopped.rename(stopped.with_name("moved"))
    resume(moved)
    assert differences(finished.path, moved) == []
