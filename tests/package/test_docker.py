"""The images and the compose file: checked wherever the tools are, built where Docker is."""

import json
import re
import shutil
import subprocess
import time

import pytest

from fedtiny.flower.trial import local

from .compose import FILE, SERVICES, machine, mounts, words_of
from .tools import ROOT, told, tool

DOCKERFILE = ROOT / "docker" / "Dockerfile"
PATIENCE = 300


def test_hadolint_has_nothing_to_say():
    assert told(tool("hadolint"), str(DOCKERFILE)) == ""


def test_the_compose_file_follows_the_specification():
    checker = tool("check-jsonschema")
    assert "ok" in told(checker, "--builtin-schema", "vendor.compose-spec", str(FILE))


def test_a_device_has_no_torch_and_no_image_runs_as_root():
    stages = dict(
        re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE.read_text(), re.M | re.S)
    )
    assert set(stages) == {"wheel", "base", "server", "device"}
    assert "torch" in stages["server"]
    assert "torch" not in stages["device"] + stages["base"]
    for image in ("server", "device"):
        assert re.findall(r"^USER (\S+)$", stages[image], re.M) == ["1000"]
    assert {service["build"]["target"] for service in SERVICES.values()} == {"server", "device"}


def test_what_a_wheel_is_built_from_reaches_docker():
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    needed = {"src", "experiments", "benchmarks/device", "pyproject.toml", "hatch_build.py"}
    assert needed | {"README.md", "LICENSE", "NOTICE"} == set(allowed)
    assert all((ROOT / path).exists() for path in allowed)


def test_each_machine_sees_its_own_keys():
    assert set(mounts("keys").values()) == {"server", "node0", "node1"}
    assert mounts("node0") == {"/keys": "node0"}
    assert mounts("node1") == {"/keys": "node1"}
    assert mounts("superlink")["/keys"] == mounts("train")["/keys"] == "server"
    given = re.findall(r"cp (.*) /keys/(\w+)\n", words_of("keys")[-1])
    private = {place: re.findall(r"\bnode\d\b|server", files) for files, place in given}
    assert private == {"node0": ["node0"], "node1": ["node1"], "server": ["server"]}


@pytest.mark.parametrize("service", ["superlink", "node0", "node1"])
def test_the_flags_of_a_service_are_those_of_the_docs(service):
    page = (ROOT / "docs" / "flower.md").read_text().replace("\\\n", " ")
    program, *arguments = words_of(service)
    line = next(line for line in page.splitlines() if line.startswith(f"{program} "))
    flags = {word for word in arguments if word.startswith("--")}
    assert flags == set(re.findall(r"--[a-z-]+", line))


@pytest.mark.federation
@pytest.mark.timeout(900)
def test_the_commands_of_the_compose_file_train_a_model(tmp_path):
    """All services as processes of this machine, in the order in which Docker starts them."""
    short = {"RUN_CONFIG": "rounds=1 pruning.r_stop=1"}
    with machine(tmp_path, {**local.QUIET, **short}) as here:
        keys = here.start("keys", {"/keys/new": tmp_path / "new", "chown -R fedtiny /keys": "true"})
        assert keys.process.wait(PATIENCE) == 0, keys.last_words()
        here.start("superlink")
        here.wait_until_healthy("superlink", PATIENCE)
        train = here.start("train")
        wait_for(train, "is a Flower app")
        for node in ("node0", "node1"):
            here.start(node, {"--node-config": f"--port {local.free_port()} --node-config"})
        assert train.process.wait(PATIENCE) == 0, train.last_words()
        assert "done: accuracy" in train.log.read_text()
    run = tmp_path / "runs" / "flower"
    assert json.loads((run / "result.json").read_text())["rounds"] == 1
    named = json.loads((run / "nodes.json").read_text())["devices"].values()
    assert [device["name"] for device in named] == ["node-0", "node-1"]
    assert sorted(path.name for path in (tmp_path / "node0").iterdir()) == ["ca.crt", "node0"]


def wait_for(started, text):
    end = time.monotonic() + PATIENCE
    while text not in started.log.read_text():
        assert time.monotonic() < end, started.last_words()
        assert started.is_alive, started.last_words()
        time.sleep(0.2)


@pytest.mark.package
@pytest.mark.parametrize("target", ["device", "server"])
def test_an_image_is_built_where_docker_is(target):
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("there is no Docker daemon here")
    told(docker, "build", "--target", target, "--tag", f"fedtiny-{target}", "-f", DOCKERFILE, ".")
    assert "fedtiny" in told(docker, "run", "--rm", f"fedtiny-{target}", "fedtiny", "--version")
