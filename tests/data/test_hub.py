"""Fetching from the hub, with a stand-in for the download."""

from pathlib import Path

import huggingface_hub
import pytest

from fedtiny.data import hub, load
from fedtiny.errors import DataError


@pytest.mark.parametrize(
    ("name", "repository", "config"),
    [
        ("cifar10", "uoft-cs/cifar10", "plain_text"),
        ("cifar100", "uoft-cs/cifar100", "cifar100"),
        ("cinic10", "flwrlabs/cinic10", "data"),
        ("svhn", "ufldl-stanford/svhn", "cropped_digits"),
    ],
)
def test_get_asks_for_the_needed_files_and_load_finds_them(
    name: str, repository: str, config: str, monkeypatch, make_split, tmp_path: Path
) -> None:
    asked = {}

    def download(repo_id: str, **options) -> None:
        asked.update(options, repo_id=repo_id)
        make_split(name, "train", below=config)
        make_split(name, "test", below=config)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.get(name) == tmp_path / "data" / name
    assert asked == {
        "repo_id": repository,
        "repo_type": "dataset",
        "local_dir": tmp_path / "data" / name,
        "allow_patterns": [f"{config}/train-*.parquet", f"{config}/test-*.parquet"],
    }
    assert len(load(name).train) == 12


def test_the_root_can_be_given(monkeypatch, tmp_path: Path) -> None:
    folders = []

    def download(repo_id: str, *, local_dir: Path, **options) -> None:
        folders.append(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(DataError, match="no train files of cifar10"):
        hub.get("cifar10", tmp_path / "elsewhere")
    assert folders == [tmp_path / "elsewhere" / "cifar10"]


def test_a_network_failure_is_one_sentence(monkeypatch) -> None:
    def download(repo_id: str, **options) -> None:
        raise ConnectionError("no route to host\nand a long trace")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(DataError) as refusal:
        hub.get("svhn")
    assert "no route to host" in str(refusal.value)
    assert "check the network" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "complaint"), [("digits", "nothing to fetch"), ("x", "cinic10")])
def test_what_the_hub_does_not_have(name: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        hub.get(name)
