"""Nodes whose data are files of arrays and tables; a file that is shared out among nodes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedtiny.data import Columns, load_own
from fedtiny.errors import DataError

from ..runs.test_sensors import LABELS, OWNERS, SENSOR, SEQUENCES
from ..runs.tiny import essence, lines, train
from .federation import Grid, federate, tiny

KINDS = ("rest", "walk", "run")
FIRST = slice(0, 60)
FEATURES = np.random.default_rng(0).normal(5, 1, (200, 6)) + 4 * LABELS[:, None]


def save(path, part, **more):
    np.savez(path, x=SEQUENCES[part], y=LABELS[part], **more)
    return path


def write_csv(path, part):
    rows = zip(FEATURES[part].tolist(), LABELS[part], strict=True)
    header = [*(f"f{i}" for i in range(6)), "kind"]
    text = [",".join(header), *(",".join([*map(str, row), KINDS[label]]) for row, label in rows)]
    path.write_text("\n".join(text))
    return path


def config_of(path, nodes, **changes):
    data = {"name": "file", "root": str(path), "limit_train": None, "limit_test": None}
    data |= {"n_shots": 2, **changes.pop("data", {})}
    return tiny(**{**vars(SENSOR), "data": data, "fleet": {"devices": nodes}, **changes})


def test_sensors_of_one_s_own_in_npz_files_take_part(tmp_path):
    server = save(tmp_path / "server.npz", FIRST, layout="NCT", device_ids=OWNERS[FIRST])
    turned = {"x": SEQUENCES[60:100].transpose(0, 2, 1), "y": 2 - LABELS[60:100], "layout": "NTC"}
    np.savez(tmp_path / "a.npz", **turned, classes=["2", "1", "0"])
    b = {"x_train": SEQUENCES[100:160], "y_train": LABELS[100:160], "layout": "NCT"}
    np.savez(tmp_path / "b.npz", **b)
    nodes = {100 + i: {"name": n, "data": str(tmp_path / f"{n}.npz")} for i, n in enumerate("ab")}
    run = federate(Grid(nodes), config_of(server, 2), tmp_path / "run", data="own")
    noted = json.loads((run / "nodes.json").read_text())["devices"]
    assert [(one["name"], one["samples"]) for one in noted.values()] == [("a", 40), ("b", 60)]
    found = lines(run)
    assert [line["answered"] for line in found] == [[0, 1]] * 2
    assert [line["failed"] for line in found] == [{}] * 2
    first = load_own(tmp_path / "a.npz", ("0", "1", "2"))
    np.testing.assert_array_equal(first.images[:, :, 0], SEQUENCES[60:100])
    np.testing.assert_array_equal(first.labels, LABELS[60:100])


def test_tables_of_one_s_own_take_part_and_measure(tmp_path):
    server = write_csv(tmp_path / "server.csv", FIRST)
    rows = {f"f{i}": FEATURES[100:150, i] for i in range(6)}
    rows |= {"kind": [KINDS[label] for label in LABELS[100:150]], "who": ["x"] * 50}
    pq.write_table(pa.table(rows), tmp_path / "b.parquet")
    nodes = {
        100: {"name": "anna", "data": str(write_csv(tmp_path / "a.csv", slice(60, 100)))},
        101: {"name": "ben", "data": str(tmp_path / "b.parquet")},
    }
    columns = {"label_column": "kind"}
    config = config_of(server, 2, model="mlp", width=16, density=0.5, data=columns)
    run = federate(Grid(nodes), config, tmp_path / "run", data="own", test="devices")
    away = json.loads((run / "nodes.json").read_text())
    assert [one["samples"] for one in away["devices"].values()] == [40]
    assert "do not fit this run" in away["turned_away"]["101"], "ben's file has a column more"
    columns["device_column"] = "who"
    write_csv(server, FIRST)
    text = server.read_text().splitlines()
    server.write_text("\n".join([f"{text[0]},who", *(f"{line},s" for line in text[1:])]))
    config = config_of(server, 2, model="mlp", width=16, density=0.5, data=columns)
    run = federate(Grid(nodes), config, tmp_path / "again", data="own", test="devices")
    assert [line["answered"] for line in lines(run)] == [[0, 1]] * 2


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": SEQUENCES[:9], "y": LABELS[:9]}, "pass layout='NCT' or 'NTC'"),
        ({"x": SEQUENCES[:9], "layout": "NCT"}, "needs the arrays x and y, but has x, layout"),
        ({"x": SEQUENCES[:9], "y": LABELS[:9] + 3, "layout": "NCT"}, "labels must be from 0 to 2"),
        (
            {"x": SEQUENCES[:9], "y": LABELS[:9], "layout": "NCT", "classes": ["0", "1", "fox"]},
            "has a class 'fox'; known are 0, 1, 2",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(arrays, complaint, tmp_path):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=complaint):
        load_own(tmp_path / "own.npz", ("0", "1", "2"), columns=Columns())


def test_sequences_of_another_length_are_told_in_the_node_s_log(tmp_path, caplog):
    server = save(tmp_path / "server.npz", FIRST, layout="NCT")
    save(tmp_path / "a.npz", FIRST, layout="NCT")
    short = {"x": SEQUENCES[FIRST, :, :64], "y": LABELS[FIRST], "layout": "NCT"}
    np.savez(tmp_path / "b.npz", **short)
    nodes = {100 + i: {"data": str(tmp_path / f"{n}.npz")} for i, n in enumerate("ab")}
    run = federate(Grid(nodes), config_of(server, 2, rounds=1), tmp_path / "run", data="own")
    assert [line["answered"] for line in lines(run)] == [[0]]
    assert "are (6, 64), but the run's are (6, 128)" in caplog.text


def test_a_file_with_device_ids_is_shared_out_as_in_the_simulator(tmp_path):
    config = config_of(save(tmp_path / "all.npz", slice(None), layout="NCT", device_ids=OWNERS), 4)
    simulated = essence(train(config, tmp_path / "simulated").path)
    parts = {100 + k: {"partition-id": k, "num-partitions": 4} for k in range(4)}
    federated = essence(federate(Grid(parts), config, tmp_path / "federated"))
    assert [name for name in simulated if simulated[name] != federated[name]] == []


def test_images_of_another_size_are_refused_unless_too_small_for_the_model(tmp_path, caplog):
    draw = np.random.default_rng(0)

    def images(name, size):
        x = draw.integers(0, 256, (30, 1, size, size), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(30) % 3, layout="NCHW")
        return str(tmp_path / f"{name}.npz")

    nodes = {100: {"name": "a", "data": images("a", 20)}, 101: {"data": images("b", 10)}}
    config = config_of(images("server", 20), 2, rounds=1, model="small", width=4, density=0.5)
    run = federate(Grid(nodes), config, tmp_path / "run", data="own")
    assert [line["answered"] for line in lines(run)] == [[0]]
    assert "b.npz are (1, 10, 10), but the run's are (1, 20, 20)" in caplog.text
    config = config_of(images("server", 3), 2, rounds=1, model="small", width=4, density=0.5)
    nodes = {100: {"data": images("a", 3)}, 101: {"data": images("b", 20)}}
    run = federate(Grid(nodes), config, tmp_path / "again", data="own")
    assert [line["answered"] for line in lines(run)] == [[0]]
    assert "a.npz are (1, 3, 3); they are resized to the run's (1, 4, 4)" in caplog.text
    assert "b.npz are (1, 20, 20), but the run's are (1, 4, 4)" in caplog.text
