"""A federation on this machine, for a trial: a SuperLink and SuperNodes on the loopback address."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tomli_w

from fedtiny.errors import FedTinyError
from fedtiny.flower.trial import certificates
from fedtiny.flower.trial.certificates import Keys
from fedtiny.flower.trial.processes import Processes, Started, executable

HOST = "127.0.0.1"
NAME = "trial"  # what the trial's SuperLink is called in Flower's config
PATIENCE = 60.0  # seconds that a SuperLink may take to start
OLDEST = (1, 40)  # the first flwr whose SuperLink speaks HTTP on one port

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
}

Say = Callable[[str], None]


@dataclass
class Federation:
    """A SuperLink and its nodes, and how to reach them."""

    home: Path
    port: int
    keys: Keys | None
    processes: Processes

    def flwr(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command of Flower's, to its end."""
        return subprocess.run(
            [executable("flwr"), *arguments],
            env=self.processes.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def start_link(self) -> Started:
        """Start the SuperLink, or start it again where it was, and wait until it listens."""
        place = ["--host", HOST, "--port", str(self.port)]
        secure = ["--insecure"]
        if self.keys:
            secure = [
                *("--ssl-ca-certfile", str(self.keys.authority)),
                *("--ssl-certfile", str(self.keys.certificate)),
                *("--ssl-keyfile", str(self.keys.key), "--enable-supernode-auth"),
            ]
        flags = [*secure, *place, "--database", str(self.home / "state.db")]
        link = self.processes.start("superlink", "flower-superlink", flags)
        _wait_for(link, self.port)
        return link

    def add_node(self, number: int, node_config: str, key: Path | None = None) -> Started:
        """Start a SuperNode."""
        secure = ["--root-certificates", str(self.keys.authority)] if self.keys else ["--insecure"]
        own = ["--auth-supernode-private-key", str(key)] if key else []
        to = ["--superlink", f"{HOST}:{self.port}", "--port", str(free_port())]
        flags = [*secure, *own, *to, "--node-config", node_config]
        return self.processes.start(f"supernode-{number}", "flower-supernode", flags)

    def run_command(self, app: Path, run_config: str) -> list[str]:
        """The command that runs an app here and follows it."""
        return [executable("flwr"), "run", str(app), NAME, "--stream", "--run-config", run_config]

    def run(self, app: Path, run_config: str) -> bool:
        """Run an app to its end; gives whether it completed, which Flower's exit code does not."""
        command = self.run_command(app, run_config)
        ran = subprocess.run(command, env=self.processes.environment, check=False)
        listed = self.flwr("list", NAME, "--format", "json")
        return ran.returncode == 0 and "finished:completed" in listed.stdout


@contextmanager
def federation(home: Path, nodes: int, tls: bool, say: Say) -> Iterator[Federation]:
    """Start a SuperLink and nodes that share a data set among them, and stop all in the end."""
    _check_version()
    (home / "logs").mkdir(parents=True)
    keys = certificates.make(home / "keys", [HOST, "localhost"], nodes) if tls else None
    port = free_port()
    _write_config(home, port, keys)
    processes = Processes(home / "logs", _environment(home))
    try:
        found = Federation(home, port, keys, processes)
        link = found.start_link()
        secure = "TLS, nodes known by their keys" if keys else "no TLS, any node may join"
        say(f"SuperLink at {HOST}:{port} (process {link.process.pid}), {secure}")
        for number in range(nodes):
            _add_part(found, number, nodes, say)
        yield found
    finally:
        processes.stop()


def _environment(home: Path) -> dict[str, str]:
    """Flower keeps to its own folder and is quiet; its programs start others by name."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


def _add_part(federation: Federation, number: int, nodes: int, say: Say) -> None:
    key = federation.keys.node(number) if federation.keys else None
    if key:
        register(federation, key)
    node_config = f'partition-id={number} num-partitions={nodes} name="node-{number}"'
    started = federation.add_node(number, node_config, key)
    known = ", its key is registered" if key else ""
    say(f"SuperNode {number} (process {started.process.pid}){known}")


def register(federation: Federation, key: Path) -> None:
    """Tell the SuperLink that it may trust a node."""
    public = key.with_suffix(".pub")
    ran = federation.flwr("supernode", "register", str(public), NAME)
    if ran.returncode:
        raise FedTinyError(f"the SuperLink does not take {public}: {ran.stdout}{ran.stderr}")


def _write_config(home: Path, port: int, keys: Keys | None) -> None:
    secure = {"root-certificates": str(keys.authority)} if keys else {"insecure": True}
    found = {"superlink": {"default": NAME, NAME: {"address": f"{HOST}:{port}", **secure}}}
    (home / "config.toml").write_text(tomli_w.dumps(found))


def _wait_for(link: Started, port: int) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and link.is_alive:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.2)
    raise FedTinyError(f"the SuperLink did not start:\n{link.last_words()}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _check_version() -> None:
    try:
        found = version("flwr")
    except PackageNotFoundError as missing:
        raise FedTinyError(
            "flwr is not installed; it comes with: pip install 'fedtiny[flower]'"
        ) from missing
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
        raise FedTinyError(f"a trial needs flwr 1.40 or newer, not {found}: pip install -U flwr")
