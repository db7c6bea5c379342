"""Data and a model of one's own, through the Python interface."""

import copy
import io
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import fedtiny
from fedtiny.cli.main import dispatch
from fedtiny.config import DataConfig
from fedtiny.errors import ConfigError, DataError, FedTinyError, ModelError, RunError
from fedtiny.export.source import pack_run
from fedtiny.runs.reporter import Lines, Silent
from fedtiny.runs.resolve import resolved
from fedtiny.runs.split import share_out

from .tiny import differences, own_data, stop, tiny, train

CONFIG = tiny(data={"limit_train": None, "limit_test": None}, rounds=2)
OTHER = "data set 'mine' is not the one that this run was started with"


class Net(nn.Sequential):
    """Four classes of 8x8 images."""

    def __init__(self, channels=1, classes=4, norm=nn.BatchNorm2d):
        super().__init__(
            *(nn.Conv2d(channels, 4, 3), norm(4), nn.ReLU()),
            *(nn.Conv2d(4, 4, 3), norm(4), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64, classes)),
        )


class Stopped(Lines):
    """Ctrl-C as soon as a run is shown."""

    def started(self, *given):
        super().started(*given)
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


@pytest.fixture(scope="module")
def whole(net, tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "run"
    return train(CONFIG, path, data=own_data(name="mine"), model=net)


@pytest.fixture
def half(whole, net, tmp_path):
    return stop(CONFIG, tmp_path / "half", 1, data=own_data(name="mine"), model=net)


def test_they_are_noted_in_the_config(whole):
    assert (whole.config.data.name, whole.config.model) == ("custom:mine", "custom:Net")
    assert whole.density <= 0.3
    assert isinstance(whole.network, Net)


class Strange(Net):
    """One whose graph nobody can tell."""

    def forward(self, images):
        return super().forward(images) if images.mean() > -1e9 else images


def test_effective_density_of_a_network_that_cannot_be_followed_is_unknown(tmp_path):
    result = train(CONFIG, tmp_path / "run", data=own_data(), model=Strange())
    assert [record["effective_density"] for record in result.metrics] == [None, None]
    assert [record["effective_densities"] for record in result.metrics] == [None, None]
    assert dispatch(["inspect", str(tmp_path / "run")]) == 0


def test_weights_of_such_a_network_cannot_be_reclaimed(tmp_path):
    config = replace(CONFIG, pruning=replace(CONFIG.pruning, reclaim=True))
    with pytest.raises(FedTinyError, match=r"leave --pruning\.reclaim out"):
        train(config, tmp_path / "run", data=own_data(), model=Strange())


def test_ones_own_module_is_left_as_it_was(net, tmp_path):
    before, training = copy.deepcopy(net.state_dict()), net.training
    result = train(CONFIG, tmp_path / "run", data=own_data(), model=net)
    assert result.network is not net
    assert net.training == training
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_default_name_is_that_of_the_class_and_the_data(net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = train(tiny(rounds=1), None, data=own_data(name="mine"), model=net)
    assert result.path.as_posix() == "runs/fedtiny-mine-Net-d0.3-s0"


def test_only_the_data_or_only_the_model_may_be_ones_own(net, tmp_path):
    named = train(tiny(rounds=1), tmp_path / "data", data=own_data())
    assert (named.config.data.name, named.config.model) == ("custom:arrays", "small")
    ten = Net(classes=10)
    given = train(tiny(rounds=1), tmp_path / "model", model=ten)
    assert (given.config.data.name, given.config.model) == ("digits", "custom:Net")


def test_resuming_in_python_goes_on_to_the_same_end(whole, half, net):
    fedtiny.resume(half, data=own_data(name="mine"), model=net, reporter=Silent())
    assert differences(whole.path, half) == []


def test_resuming_on_the_command_line_says_what_to_do(half, capsys):
    assert dispatch(["resume", str(half)]) == 1
    error = capsys.readouterr().err
    assert error == (
        "fedtiny: error: this run used a data set of your own (mine) and a model of your own (Net);"
        " continue it from Python with fedtiny.resume(path, data=..., model=...)\n"
    )


def test_a_stopped_run_says_what_to_give_again(half, net, tmp_path, capsys):
    ten = Net(classes=10)
    runs = {
        "data=..., model=...": half,
        "data=...": stop(CONFIG, tmp_path / "data", 1, data=own_data()),
        "model=...": stop(tiny(rounds=2), tmp_path / "model's", 1, model=ten),
    }
    for given, path in runs.items():
        way_on = f"continue with: fedtiny.resume({str(path)!r}, {given})  # in Python"
        assert dispatch(["inspect", str(path)]) == 0
        assert way_on in capsys.readouterr().out.replace("\n", " ")
        screen = Console(file=io.StringIO(), soft_wrap=True)
        with suppress(KeyboardInterrupt):
            again = {"data": own_data(), "model": net if path == half else ten}
            own = {name: again[name] for name in again if f"{name}=" in given}
            fedtiny.resume(path, reporter=Stopped(screen), **own)
        assert screen.file.getvalue().splitlines()[-1] == f"stopped; {way_on}"


def test_resuming_with_half_of_ones_own_says_what_is_missing(half, net):
    with pytest.raises(ConfigError, match=r"model of your own \(Net\).*model="):
        fedtiny.resume(half, data=own_data(name="mine"), reporter=Silent())
    with pytest.raises(ConfigError, match=r"data set of your own \(mine\).*data="):
        fedtiny.resume(half, model=net, reporter=Silent())


def test_resuming_with_another_model_is_refused(half):
    wider = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.Conv2d(6, 4, 3),
        nn.Flatten(),
        nn.Linear(64, 4),
    )
    with pytest.raises(RunError, match="belongs to another model"):
        fedtiny.resume(half, data=own_data(name="mine"), model=wider, reporter=Silent())


def test_resuming_with_less_data_is_refused(half, net):
    with pytest.raises(RunError, match=OTHER):
        fedtiny.resume(half, data=own_data(60, name="mine"), model=net, reporter=Silent())


def test_resuming_with_other_labels_is_refused(half, net):
    with pytest.raises(RunError, match=OTHER):
        fedtiny.resume(half, data=own_data(name="mine", shift=1), model=net, reporter=Silent())


def changed(data, change, *parts):
    """The data set with other images of the same labels in these parts."""
    old = {name: getattr(data, name) for name in parts}
    new = {name: replace(part, images=change(part.images)) for name, part in old.items()}
    return replace(data, **new)


@pytest.mark.parametrize(
    "other",
    [
        changed(own_data(name="mine"), lambda images: images[:, :, :4], "train", "test"),
        changed(own_data(name="mine"), lambda images: 255 - images, "train"),
        changed(own_data(name="mine"), lambda images: 255 - images, "test"),
    ],
    ids=["another size", "training", "test"],
)
def test_resuming_with_other_images_of_the_same_labels_is_refused(tmp_path, other):
    """Also of another size, where the model takes only one."""
    config = replace(CONFIG, model="vgg11")
    half = stop(config, tmp_path / "half", 1, data=own_data(name="mine"))
    with pytest.raises(RunError, match=OTHER):
        fedtiny.resume(half, data=other, reporter=Silent())


def test_the_same_data_may_have_another_name(whole, half, net):
    fedtiny.resume(half, data=own_data(name="theirs"), model=net, reporter=Silent())
    assert differences(whole.path, half) == []


def test_a_model_without_batch_norm_is_selected_without_it(tmp_path):
    plain, config = Net(norm=nn.Identity), tiny(rounds=1, selection={"kind": "vanilla"})
    vanilla = train(config, tmp_path / "vanilla", data=own_data(), model=plain)
    usual = train(tiny(rounds=1), tmp_path / "usual", data=own_data(), model=plain)
    assert usual.selection["selection"] == vanilla.selection["selection"]
    assert (usual.path / "model.safetensors").read_bytes() == (
        vanilla.path / "model.safetensors"
    ).read_bytes()


def test_a_model_for_other_images_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"does not take samples of shape \(1, 8, 8\)"):
        train(CONFIG, tmp_path / "run", data=own_data(), model=Net(channels=3))
    assert not (tmp_path / "run").exists()


def test_a_model_of_two_layers_is_refused(tmp_path):
    shallow = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 4))
    with pytest.raises(ModelError, match="needs at least three"):
        train(CONFIG, tmp_path / "run", data=own_data(), model=shallow)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("classes", [2, 5])
def test_a_model_with_too_few_or_too_many_outputs_is_refused(tmp_path, classes):
    with pytest.raises(ModelError, match=rf"outputs of shape \({classes},\).* has 4 classes"):
        train(CONFIG, tmp_path / "run", data=own_data(), model=Net(classes=classes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "named"),
    [({"density": 0.1}, "a value of type dict"), ("a.toml", "type str"), (fedtiny.Config, "class")],
)
def test_what_is_no_config_is_refused_with_the_way_to_one(config, named):
    with pytest.raises(ConfigError, match=rf"takes a fedtiny\.Config, got .*{named}.*from_dict"):
        fedtiny.run(config)


class Pair(Net):
    """Gives more than logits."""

    def forward(self, images):
        return super().forward(images), images


def spoilt(name, value):
    """One with a value that no training can start from."""
    model = Net()
    model.state_dict()[name].view(-1)[0] = value
    return model


NOT_MODELS = {
    "got the class Net;": lambda: Net,
    "got a value of type str;": lambda: "resnet18",
    "got a value of type function;": lambda: lambda images: images,
    r"torch\.jit": lambda: torch.jit.trace(Net().eval(), torch.zeros(1, 1, 8, 8)),
    r"torch\.compile made": lambda: torch.compile(Net()),
    "the model gives a tuple": Pair,
    "lies on the meta device.* make it on the CPU": lambda: Net().to("meta"),
    "every parameter of the model is frozen.* unfreeze": lambda: Net().requires_grad_(False),
    r"'3\.weight' of the model holds NaN or infinity before": lambda: spoilt("3.weight", np.nan),
    r"'4\.running_var' of the model holds NaN": lambda: spoilt("4.running_var", np.inf),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("complaint", NOT_MODELS)
def test_what_is_no_network_to_train_is_refused(complaint, tmp_path):
    with pytest.raises(ModelError, match=complaint):
        train(CONFIG, tmp_path / "run", data=own_data(), model=NOT_MODELS[complaint]())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", ["cifar10", (np.zeros((4, 8, 8)), np.zeros(4)), DataConfig()])
def test_what_is_no_data_set_is_refused(data, net, tmp_path):
    with pytest.raises(DataError, match=r"from_arrays.* got .*DataConfig\(name="):
        train(CONFIG, tmp_path / "run", data=data, model=net)
    assert not (tmp_path / "run").exists()


def test_resuming_and_packing_refuse_them_too(whole, net):
    for work in (fedtiny.resume, pack_run):
        with pytest.raises(ModelError, match="got the class Net"):
            work(whole.path, data=own_data(name="mine"), model=Net)
        with pytest.raises(DataError, match="type str"):
            work(whole.path, data="mine", model=net)


def test_data_of_ones_own_gets_the_papers_setting():
    config = resolved(fedtiny.Config(), own_data(), None)
    assert (config.rounds, config.pool_size, config.width) == (300, 50, None)


def test_data_of_ones_own_may_be_limited(net, tmp_path):
    config = tiny(rounds=1, data=DataConfig(limit_train=80, limit_test=20, n_shots=2))
    result = train(config, tmp_path / "run", data=own_data(), model=net)
    assert result.accuracy * 20 == pytest.approx(round(result.accuracy * 20))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_public_set_holds_images_of_the_classes_there_are(step):
    labels = np.arange(300) % 4 * step
    images = np.zeros((300, 8, 8), dtype=np.uint8)
    data = fedtiny.from_arrays((images, labels), (images, labels))
    split = share_out(data, CONFIG)
    assert np.unique(labels[split.public], return_counts=True)[1].tolist() == [5, 5, 5, 5]
    assert split.table.sum() == 280


def test_a_public_set_that_leaves_too_little_is_named():
    complaint = r"public set takes 20 of your 40 training samples .* lower --data\.n-shots"
    with pytest.raises(DataError, match=complaint):
        share_out(own_data(40), CONFIG)
    fewer = replace(CONFIG, data=replace(CONFIG.data, n_shots=2))
    assert share_out(own_data(40), fewer).table.sum() == 32
