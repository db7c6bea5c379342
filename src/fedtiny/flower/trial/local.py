"""A federation on this machine, for a trial: a SuperLink and SuperNodes on the loopback address."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import tomli_w

from fedtiny.errors import FedTinyError
from fedtiny.extras import require
from fedtiny.flower import signing_keys
from fedtiny.flower.trial import certificates
from fedtiny.flower.trial.certificates import Keys

END_PATIENCE = 10.0  # seconds that a process may take to end by itself
LAST_WORDS = 1000
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


@dataclass(frozen=True)
class Started:
    """A process, and those that it has started in turn."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def is_alive(self) -> bool:
        """Whether it is still there."""
        return self.process.poll() is None

    def family(self) -> list[int]:
        """The ids of the process and of all below it, the eldest first."""
        return descendants(self.process.pid) if self.is_alive else []

    def kill(self) -> None:
        """End the process and all below it at once, without a chance to say anything."""
        send(signal.SIGKILL, self.family())
        self.process.wait()

    def last_words(self) -> str:
        """The end of its log."""
        said = self.log.read_text(errors="replace") if self.log.exists() else ""
        return said[-LAST_WORDS:].strip()


class Processes:
    """Everything that a trial has started."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self.environment = dict(environment)
        self._started: list[Started] = []

    def named(self, name: str) -> Started:
        """The one that was started last under this name."""
        return next(started for started in reversed(self._started) if started.name == name)

    def start(self, name: str, program: str, arguments: Sequence[str]) -> Started:
        """Start a program of this Python's environment."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [executable(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self._started.append(Started(name, process, log))
        return self._started[-1]

    def check(self) -> None:
        """Make sure that nothing has died."""
        for started in self._started:
            if not started.is_alive:
                raise FedTinyError(f"{started.name} ended by itself:\n{started.last_words()}")

    def stop(self) -> None:
        """End all, the last started first: politely, then by force with all that they started."""
        families = [started.family() for started in self._started]
        for started in reversed(self._started):
            if started.is_alive:
                started.process.terminate()
        until = time.monotonic() + END_PATIENCE
        for started in reversed(self._started):
            with suppress(subprocess.TimeoutExpired):
                started.process.wait(max(0.1, until - time.monotonic()))
        for started, family in zip(self._started, families, strict=True):
            send(signal.SIGKILL, [*family, *started.family()])
            started.process.wait()
        self._started.clear()


def descendants(ancestor: int) -> list[int]:
    """A process and all below it, the eldest first."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
    )
    parents = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found = [ancestor]
    for known in found:
        found += [child for child, parent in parents if parent == known]
    return found


def send(number: int, processes: Sequence[int]) -> None:
    """Send a signal to those of these that are still there."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def executable(program: str) -> str:
    """A program of the environment that runs this."""
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.exists() else shutil.which(program)
    if not found:
        raise FedTinyError(f"{program} is missing; it comes with: pip install 'fedtiny[flower]'")
    return found


@dataclass
class Federation:
    """A SuperLink and its nodes, and how to reach them."""

    home: Path
    port: int
    keys: Keys | None
    processes: Processes
    secagg: Path | None = None
    """Folder of the keys for secure aggregation, if nodes take part in that."""

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
def federation(
    home: Path, nodes: int, tls: bool, say: Say, secure: bool = False
) -> Iterator[Federation]:
    """Start a SuperLink and nodes that share a data set among them, and stop all in the end.

    If `secure`, nodes have keys for secure aggregation and take part in no other run.
    """
    _check_version()
    (home / "logs").mkdir(parents=True)
    keys = certificates.make(home / "keys", [HOST, "localhost"], nodes) if tls else None
    secagg = home / "secagg" if secure else None
    if secagg:
        signing_keys.make(secagg, nodes)
    port = free_port()
    _write_config(home, port, keys)
    processes = Processes(home / "logs", _environment(home))
    try:
        found = Federation(home, port, keys, processes, secagg)
        link = found.start_link()
        safety = "TLS, nodes known by their keys" if keys else "no TLS, any node may join"
        say(f"SuperLink at {HOST}:{port} (process {link.process.pid}), {safety}")
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
        public = key.with_suffix(".pub")
        ran = federation.flwr("supernode", "register", str(public), NAME)
        if ran.returncode:
            raise FedTinyError(f"the SuperLink does not take {public}: {ran.stdout}{ran.stderr}")
    node_config = f'partition-id={number} num-partitions={nodes} name="node-{number}"'
    if folder := federation.secagg:
        own, listed = signing_keys.own_key(folder, number), folder / signing_keys.LIST
        node_config += f' secagg-key="{own}" secagg-keys="{listed}"'
    started = federation.add_node(number, node_config, key)
    known = ", its key is registered" if key else ""
    say(f"SuperNode {number} (process {started.process.pid}){known}")


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
    require("flwr", extra="flower")
    found = version("flwr")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
        raise FedTinyError(f"a trial needs flwr 1.40 or newer, not {found}: pip install -U flwr")
