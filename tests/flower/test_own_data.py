"""Nodes with data of their own, from folders and Parquet files; settings that nodes cannot have."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedtiny.cli import main
from fedtiny.config.flat import nested
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.flower.client import shard_of
from fedtiny.flower.settings import read

from ..runs.tiny import lines
from .federation import Grid, federate, tiny

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "cache"))


def write_folder(root, count=24, seed=0, classes=CLASSES, size=16):
    """Coloured noise, a folder a class."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        place = root / classes[number % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return root


def write_parquet(path, folder):
    """The same images as rows."""
    files = sorted(folder.rglob("*.png"))
    rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    labels = [CLASSES.index(file.parent.name) for file in files]
    pq.write_table(pa.table({"image": rows, "label": labels}), path)
    return path


def own_config(tmp_path, devices, **changes):
    """A run in which the server has a folder of its own."""
    server = write_folder(tmp_path / "server", 60)
    data = {"name": "folder", "root": str(server), "limit_train": None, "limit_test": None}
    return tiny(**{"rounds": 2, **changes}, data=data, fleet={"devices": devices})


def own_run(tmp_path, **nodes):
    """Such a run, in which each node has its data."""
    config = own_config(tmp_path, len(nodes))
    configs = {100 + k: {"name": name, **told} for k, (name, told) in enumerate(nodes.items())}
    grid = Grid(configs)
    return grid, federate(grid, config, tmp_path / "run", data="own", test="devices")


def test_a_folder_and_a_parquet_file_take_part_and_measure(tmp_path):
    some = write_folder(tmp_path / "a", 24, seed=1, classes=CLASSES[:2])
    table = write_parquet(tmp_path / "b.parquet", write_folder(tmp_path / "b", 30, seed=2))
    _, run = own_run(tmp_path, anna={"data": str(some)}, ben={"data": str(table)})
    noted = json.loads((run / "nodes.json").read_text())["devices"]
    assert [(assignment["name"], assignment["samples"]) for assignment in noted.values()] == [
        ("anna", 24),
        ("ben", 30),
    ]
    found = lines(run)
    assert [line["answered"] for line in found] == [[0, 1]] * 2
    assert all(0 <= line["accuracy"] <= 1 and line["bytes_evaluation"] > 0 for line in found)
    assert all(line["flops"] > 0 for line in found), "costs are those of a node of mean size"


def test_the_first_line_inspect_and_the_report_say_whose_data_it_is(tmp_path, capsys):
    _, run = own_run(tmp_path, anna={"data": str(write_folder(tmp_path / "a"))})
    wanted = "on folder, own data of 1 node, 2 rounds"
    assert wanted in capsys.readouterr().out
    assert main.dispatch(["inspect", str(run)]) == 0
    assert wanted in " ".join(capsys.readouterr().out.split())
    page = (run / "report.html").read_text()
    assert wanted in page
    assert "Dirichlet" not in page


def test_the_development_set_of_a_node_stays(tmp_path, monkeypatch):
    seen = []

    def watched(*arguments):
        seen.append(shard_of(*arguments))
        return seen[-1]

    monkeypatch.setattr("fedtiny.flower.client.shard_of", watched)
    own_run(tmp_path, anna={"data": str(write_folder(tmp_path / "a"))})
    assert len(seen) >= 5, "it joins, selects twice, trains and measures"
    assert len({shard.development.tobytes() for shard in seen}) == 1
    assert isinstance(seen[0].data.images, np.memmap)


def test_a_node_whose_data_does_not_fit_is_told_why_in_its_own_log(tmp_path, capsys, caplog):
    good = {"data": str(write_folder(tmp_path / "good"))}
    odd = write_folder(tmp_path / "odd", classes=("cat", "fox"))
    _, run = own_run(tmp_path, good=good, odd={"data": str(odd)}, bare={})
    away = json.loads((run / "nodes.json").read_text())["turned_away"]
    assert away["101"].startswith("odd: data: its samples or labels cannot be read, or do not fit")
    assert f"{odd} has a class 'fox'; known are cat, dog, owl" in caplog.text
    assert "start them with --node-config 'data=" in away["102"]
    said = capsys.readouterr().out
    assert "odd takes no part: data: " in said
    assert str(odd) not in said
    assert "fox" not in said


def test_a_node_with_data_of_its_own_loads_no_set_that_the_server_names(
    tmp_path, monkeypatch, capsys
):
    """Not even if it has the number of a part."""
    loaded = []
    monkeypatch.setattr("fedtiny.flower.client.load_data", loaded.append)
    own = str(write_folder(tmp_path / "own"))
    node = {"name": "anna", "data": own, "partition-id": 0, "num-partitions": 1}
    with pytest.raises(FedTinyError, match="0 nodes came"):
        federate(Grid({100: node}), own_config(tmp_path, 1), tmp_path / "run", test="devices")
    said = "this node has data of its own, and takes part only in runs with flower.data = 'own'"
    assert said in capsys.readouterr().out
    assert loaded == []


def test_back_under_another_id_a_node_may_play_a_smaller_ones_device(tmp_path):
    """What the node says when it joins counts, not what the one before it had."""
    small = {"name": "anna", "data": str(write_folder(tmp_path / "a", 24, seed=1))}
    large = {"name": "ben", "data": str(write_folder(tmp_path / "b", 40, seed=2))}
    config = own_config(tmp_path, 2, rounds=3)

    def killed(grid, node, message):
        if grid.kinds(node).count("train") == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(Grid({100: small, 101: large}, killed), config, tmp_path / "run", data="own")
    federate(Grid({200: large, 201: small}), config, tmp_path / "run", data="own", resume=True)
    assert [line["failed"] for line in lines(tmp_path / "run")] == [{}] * 3
    noted = json.loads((tmp_path / "run" / "nodes.json").read_text())["devices"]
    assert [assignment["samples"] for assignment in noted.values()] == [40, 24]


def test_no_node_has_more_images_than_the_run_allows(tmp_path):
    nodes = {100: {"data": str(write_folder(tmp_path / "a", 24))}, 101: {}}
    nodes[101]["data"] = str(write_folder(tmp_path / "b", 30))
    config = own_config(tmp_path, 2, robustness={"max_samples": 24})
    run = federate(Grid(nodes), config, tmp_path / "run", data="own")
    assert [line["answered"] for line in lines(run)] == [[0]] * 2
    away = json.loads((run / "nodes.json").read_text())["turned_away"]
    assert away["101"].startswith("it says that it has 30 samples, more than the 24")


def test_images_of_another_size_are_made_to_fit(tmp_path):
    large = {"data": str(write_folder(tmp_path / "large", size=20))}
    _, run = own_run(tmp_path, large=large)
    assert lines(run)[-1]["answered"] == [0]


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"flower.timeout": 0}, "above 0 seconds"),
        ({"flower.tiemout": 3}, "did you mean 'flower.timeout'"),
        ({"fleet.straggler_rate": 0.5}, "simulated devices"),
        ({"device.python": "python3"}, "simulated devices"),
        ({"simulator": "gpu"}, "the devices are real"),
    ],
)
def test_settings_that_cannot_be(told, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read(told)


def test_tables_come_back_from_flat_keys():
    assert nested({"a": 1, "b.c": 2, "b.d": 3}) == {"a": 1, "b": {"c": 2, "d": 3}}
