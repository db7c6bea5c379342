"""The best round's model beside the final one: by what it is chosen, and how it is exported."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedtiny.cli.main import dispatch
from fedtiny.errors import ExportError, RunError
from fedtiny.export import packed
from fedtiny.export.formats import Order
from fedtiny.export.source import tiny_model
from fedtiny.federation.rounds import federate
from fedtiny.runs.assembly import assemble
from fedtiny.runs.best import best_model, keep_best

from .tiny import FILES, lines, tiny, train


def told(path):
    return json.loads((path / "result.json").read_text())["best"]


@pytest.fixture
def assembly():
    made = assemble(tiny(rounds=6, save_best=True))
    yield made
    made.server.transport.close()


def record(number, loss=1.0, devices=None, **changes):
    plain = {"accuracy": 0.5, "loss": 1.0, "counted": True, "device_accuracy_mean": devices}
    return {"round_number": number, "train_loss": loss, **plain, **changes}


def chosen(assembly, *records):
    """The round whose model is kept after all of these."""
    for number in range(len(records)):
        keep_best(assembly.server, records[: number + 1])
    return assembly.server.memory.get("best", {}).get("round_number")


def test_it_is_the_round_of_the_lowest_training_loss_and_of_equal_ones_the_first(assembly):
    assert chosen(assembly, *(record(n, loss) for n, loss in enumerate([3, 1, 2, 1], 1))) == 2


def test_test_accuracy_does_not_matter(assembly):
    better = record(2, 2.0, accuracy=1.0)
    assert chosen(assembly, record(1, 1.0, accuracy=0.1), better) == 1


def test_rounds_that_did_not_count_or_were_not_measured_are_left_out(assembly):
    void = record(2, 0.1, counted=False)
    assert chosen(assembly, record(1, 1.0), void, record(3, None)) == 1


def test_a_round_that_was_not_tested_may_be_the_best(assembly):
    untested = record(2, 0.1) | {"accuracy": None, "loss": None}
    assert chosen(assembly, record(1, 1.0), untested) == 2


def test_with_accuracy_on_the_devices_that_decides():
    assembly = assemble(tiny(save_best=True, eval_devices=True))
    rounds = [record(n, n, devices) for n, devices in enumerate([0.2, 0.6, 0.4, None], 1)]
    assert chosen(assembly, *rounds) == 2
    assert assembly.server.memory["best"]["by"] == "device_accuracy_mean"
    assembly.server.transport.close()


def test_the_model_kept_is_that_of_the_round_under_its_own_mask(assembly):
    server, thetas, records = assembly.server, [], []
    for result in federate(server, assembly.method, 4):
        thetas.append(server.theta)
        records.append(record(result.round + 1, loss=[3, 1, 2, 2][result.round]))
        keep_best(server, records)
    assert thetas[1].mask != thetas[3].mask
    assert best_model(server).version == thetas[1].version


def test_a_run_keeps_it_beside_the_final_model(tmp_path):
    config = tiny(rounds=4, save_best=True, train={"optimizer": "sgd", "lr": 0.05})
    path = train(config, tmp_path / "run").path
    assert {file.name for file in path.iterdir() if file.name != ".lock"} == FILES | {
        "best.safetensors"
    }
    best, rounds = told(path), lines(path)
    losses = [line["train_loss"] for line in rounds]
    assert (best["by"], best["train_loss"]) == ("train_loss", min(losses))
    assert best["accuracy"] == rounds[best["round_number"] - 1]["accuracy"]
    state, final = (load_file(path / f"{name}.safetensors") for name in ("best", "model"))
    kept = sum(np.count_nonzero(state[layer]) for layer in rounds[0]["densities"])
    assert kept <= best["kept_weights"]
    is_last = best["round_number"] == 4
    assert all(np.array_equal(state[name], final[name]) for name in state) == is_last


def test_it_can_be_exported(tmp_path, capsys):
    path = train(tiny(save_best=True), tmp_path / "run").path
    assert dispatch(["export", str(path), "--best"]) == 0
    assert "best.packed" in capsys.readouterr().out
    model = packed.read(path / "best.packed")
    assert model.card["accuracy"] == told(path)["accuracy"]
    with pytest.raises(ExportError, match="--best needs the run folder"):
        Order(path / "best.packed", best=True)


def test_a_run_that_kept_none_says_so(tmp_path):
    path = train(tiny(rounds=1), tmp_path / "run").path
    with pytest.raises(RunError, match=r"has kept no best model; it was run without --save-best"):
        tiny_model(path, best=True)
