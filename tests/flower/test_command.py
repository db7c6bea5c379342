"""fedtiny flower: the app folder, keys, and processes that do not outlive a trial."""

import importlib.util
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedtiny.cli.main import dispatch
from fedtiny.config import Config, FleetConfig, resolve, to_dict
from fedtiny.errors import FedTinyError, RunError
from fedtiny.flower import signing_keys
from fedtiny.flower.settings import PACKAGE, FlowerSettings, parse_changes, read
from fedtiny.flower.trial import certificates, local
from fedtiny.flower.trial.local import Processes, descendants, executable

from ..runs.tiny import assert_one_sentence


def table(app):
    """The run config that an app folder has."""
    return tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_an_app_holds_every_setting_of_a_run(tmp_path, capsys):
    assert dispatch(["flower", "init", str(tmp_path / "app"), "--nodes", "4"]) == 0
    assert "fedtiny flower up" in capsys.readouterr().out
    written = table(tmp_path / "app")
    own = {f"flower.{name}": value for name, value in written.pop("flower").items()}
    sections = {k: v for k, v in written.items() if isinstance(v, dict)}
    plain = {k: v for k, v in written.items() if k not in sections}
    nested = {f"{name}.{k}": v for name, section in sections.items() for k, v in section.items()}
    settings, config = read({**plain, **nested, **own})
    assert settings == FlowerSettings()
    expected = to_dict(resolve(Config(fleet=FleetConfig(devices=4))))
    assert to_dict(config) == {**expected, "simulator": "reference", "workers": 1, "threads": 1}


def test_an_app_takes_a_config_file_and_never_writes_over_anything(tmp_path, capsys):
    (tmp_path / "my.toml").write_text("density = 0.02\n[fleet]\nalpha = 0.1\n")
    order = ["flower", "init", str(tmp_path / "app"), "--config", str(tmp_path / "my.toml")]
    assert dispatch(order) == 0
    assert table(tmp_path / "app")["density"] == 0.02
    assert table(tmp_path / "app")["fleet"]["alpha"] == 0.1
    assert dispatch(order) == 1
    assert "is there already; choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize(("side", "kind"), [("client", ClientApp), ("server", ServerApp)])
def test_an_app_s_modules_give_the_apps(side, kind, tmp_path):
    dispatch(["flower", "init", str(tmp_path)])
    path = tmp_path / PACKAGE / f"{side}_app.py"
    assert len(path.read_text().split("\n\n")) == 2, "an import and a name"
    spec = importlib.util.spec_from_file_location("app_of_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module.app, kind)


@pytest.mark.slow
def test_flower_takes_the_app(tmp_path):
    dispatch(["flower", "init", str(tmp_path / "app")])
    quiet = {**os.environ, **local.QUIET, "FLWR_HOME": str(tmp_path / "home")}
    build = [executable("flwr"), "build", "--app", str(tmp_path / "app")]
    built = subprocess.run(
        build, env=quiet, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = tmp_path.glob("*.fab")
    assert bundle.stat().st_size < 10_000


def test_keys_fit_together_and_are_private(tmp_path):
    keys = certificates.make(tmp_path / "keys", ["superlink.example.org", "192.0.2.7"], nodes=2)
    root, server = (
        x509.load_pem_x509_certificate(path.read_bytes())
        for path in (keys.authority, keys.certificate)
    )
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    publics = set()
    for number in range(2):
        key = load_ssh_private_key(keys.node(number).read_bytes(), None)
        public = load_ssh_public_key(keys.node(number).with_suffix(".pub").read_bytes())
        assert key.public_key() == public
        publics.add(keys.node(number).with_suffix(".pub").read_bytes())
    assert len(publics) == 2
    for path in (keys.key, keys.node(0), keys.node(1)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_are_never_written_over(tmp_path, capsys):
    order = ["flower", "keys", str(tmp_path / "keys"), "--host", "localhost", "--nodes", "1"]
    assert dispatch(order) == 0
    assert set(signing_keys.read_list(str(tmp_path / "keys" / "secagg-keys"))) == {0}
    before = (tmp_path / "keys" / "node0").read_bytes()
    assert dispatch(order) == 1
    assert "keys are never written over" in capsys.readouterr().err
    with pytest.raises(RunError):
        certificates.make(tmp_path / "keys", ["localhost"], nodes=1)
    assert (tmp_path / "keys" / "node0").read_bytes() == before


def test_up_wants_an_app(tmp_path, capsys):
    assert dispatch(["flower", "up", str(tmp_path)]) == 1
    assert "make one with: fedtiny flower init DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run_config", "why"),
    [
        ("density=5", "--density must lie in (0, 1], got 5"),
        ('rounds="x"', "'rounds' must be int, got 'x'"),
        ("rounds.most=2", "'rounds' must be int, got {'most': 2}"),
        ("fleet=2", "'fleet' is a table of settings, not a single value"),
        ("rouns=2", "unknown key 'rouns'; did you mean 'rounds'?"),
        ('method="fedtin"', "there is no method 'fedtin'"),
        ('model="resnet81"', "there is no model 'resnet81'"),
        ("flower.wait=0", "'flower.wait' must be above 0 seconds, got 0"),
        ("train.lr=0.1", "pyproject.toml names, and 'train.lr' is not there; add it"),
        ("fleet.devices=2", "--nodes is the number of devices; leave fleet.devices out"),
        ("fleet.min_replies=3", "--fleet.min-replies is 3, more than the devices a round asks"),
        ("method=fedavg", "takes settings as in 'rounds=3 method=\"fedavg\"'"),
        ("rounds=2 rounds=3", "each of them once, not 'rounds=2 rounds=3'"),
        ("rounds = 3", "takes settings as in"),
        ("changes.toml", "takes settings as in"),
    ],
)
def test_a_bad_setting_is_told_before_anything_is_started(
    run_config, why, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "federation", None)
    assert dispatch(["flower", "init", "app", "--nodes", "2"]) == 0
    capsys.readouterr()
    code = dispatch(["flower", "up", "app", "--nodes", "2", "--run-config", run_config])
    out, err = capsys.readouterr()
    assert_one_sentence(code, err, why)
    assert out == ""


def test_an_app_that_cannot_be_read_is_told(tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    code = dispatch(["flower", "up", str(tmp_path)])
    assert_one_sentence(code, capsys.readouterr().err, "is no app; make one with")
    (tmp_path / "pyproject.toml").write_text("[tool\n")
    code = dispatch(["flower", "up", str(tmp_path)])
    assert_one_sentence(code, capsys.readouterr().err, "cannot read", "pyproject.toml")


PARENT = """
import subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
time.sleep(600)
"""


def gone(process):
    """Whether a process has ended, if only as a zombie that nobody has asked after."""
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip()[:1] in ("", "Z")


def family_of_two(processes):
    started = processes.start("parent", "python3", ["-c", PARENT])
    while len(descendants(started.process.pid)) < 2:
        time.sleep(0.05)
    return started


def test_what_a_trial_started_is_stopped_with_all_below_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtiny.flower.trial.local.END_PATIENCE", 0.5)
    processes = Processes(tmp_path, os.environ)
    family = family_of_two(processes).family()
    processes.check()
    processes.stop()
    assert [gone(process) for process in family] == [True, True]


def test_a_process_that_ended_by_itself_is_told_with_its_last_words(tmp_path):
    processes = Processes(tmp_path, os.environ)
    started = processes.start("one", "python3", ["-c", "print('no port left')"])
    started.process.wait()
    with pytest.raises(FedTinyError, match=r"one ended by itself:\nno port left"):
        processes.check()
    processes.stop()


def test_a_program_that_is_missing_names_its_extra():
    with pytest.raises(FedTinyError, match=r"pip install 'fedtiny\[flower\]'"):
        executable("flower-hyperlink")


@pytest.mark.federation
@pytest.mark.timeout(600)
def test_up_stops_all_of_it_at_ctrl_c(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    order = [sys.executable, "-m", "fedtiny", "flower", "up", "--nodes", "1"]
    up = subprocess.Popen(
        order, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = []
    for line in up.stdout:
        said.append(line)
        if "flwr run APP" in line:
            break
    family = descendants(up.pid)
    up.send_signal(signal.SIGINT)
    said += up.stdout.readlines()
    up.stdout.close()
    assert up.wait() == 0, "".join(said)
    assert said[-1] == "all stopped\n"
    assert "telemetry is off" in said[0]
    assert len(family) >= 3
    assert all(gone(process) for process in family)
    assert list(tmp_path.iterdir()) == [], "no key is left behind"


def test_a_second_trial_of_an_app_is_told_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dispatch(["flower", "init", "app", "--nodes", "2"]) == 0
    (tmp_path / table(tmp_path / "app")["flower"]["run"]).mkdir(parents=True)
    (tmp_path / table(tmp_path / "app")["flower"]["run"] / "config.toml").touch()
    assert dispatch(["flower", "up", "app", "--nodes", "2", "--tls"]) == 1
    said = capsys.readouterr().err
    assert "holds a run already; continue it with: fedtiny flower up app --nodes 2 --tls" in said
    assert "flower.resume=true, or begin another with --run-config 'flower.run=" in said


@contextmanager
def interrupted(*_):
    """A federation that Ctrl-C ends as soon as it is there."""
    raise KeyboardInterrupt
    yield


def test_a_trial_that_is_stopped_says_how_the_same_run_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "federation", interrupted)
    assert dispatch(["flower", "init", "my app", "--nodes", "2"]) == 0
    order = ["flower", "up", "my app", "--nodes", "2", "--tls", "--run-config"]
    changes = 'rounds=9 flower.resume=false flower.run="runs/d\'s"'
    assert dispatch([*order, changes]) == 130
    told = re.search(r"continue it with: fedtiny (.*)\n", capsys.readouterr().out).group(1)
    *again, run_config = shlex.split(told)
    assert again == order
    assert parse_changes(run_config) == {**parse_changes(changes), "flower.resume": True}
    assert dispatch([*again, run_config]) == 130, "it can be given as it was told"
    assert f"continue it with: fedtiny {told}\n" in capsys.readouterr().out


@pytest.mark.parametrize("order", [["init", "app"], ["up"], ["keys", "keys", "--host", "a"]])
def test_no_nodes_are_refused_before_anything_is_made(order, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dispatch(["flower", *order, "--nodes", "0"]) == 1
    assert "--nodes must be at least 1, got 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--host", "münchen.example"], "ASCII names"),
        (["--host", ""], "ASCII names"),
        (["--host", "a", "--days", "-5"], r"--days must lie in \[1, 36500\], got -5"),
        (["--host", "a", "--days", "99999999"], "--days must lie in"),
    ],
)
def test_keys_that_cannot_be_made_leave_nothing_behind(flags, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dispatch(["flower", "keys", "keys", *flags]) == 1
    assert re.search(why, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
