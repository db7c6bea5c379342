"""fedtiny flower."""

import contextlib
import shlex
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from fedtiny import config as configs
from fedtiny import methods, models
from fedtiny.config import Config
from fedtiny.config.flat import Flat
from fedtiny.errors import ConfigError, FedTinyError, plural
from fedtiny.extras import require
from fedtiny.flower import settings as apps
from fedtiny.paths import user_path
from fedtiny.process import Stopped, stop_on_signals
from fedtiny.runs.folder import quoted

if TYPE_CHECKING:
    from fedtiny.flower.trial.local import Federation


@dataclass(frozen=True)
class Init:
    """Write a small Flower app; its pyproject holds every setting of the run."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="DIR")]
    """Folder for the app."""
    config: Path | None = None
    """Config file of fedtiny to start from; default: the digits."""
    nodes: int = 3
    """Number of nodes: the devices of the run."""

    def carry_out(self) -> int:
        """Write the app."""
        _check_nodes(self.nodes)
        config = configs.load(self.config) if self.config else Config()
        config = replace(config, fleet=replace(config.fleet, devices=self.nodes))
        apps.write_app(self.folder, config, apps.FlowerSettings())
        print(f"{quoted(self.folder)} is a Flower app; its README.md has the commands")
        print(f"try it here: fedtiny flower up {quoted(self.folder)} --nodes {self.nodes} --tls")
        return 0


@dataclass(frozen=True)
class Keys:
    """Make a certificate authority, the SuperLink's certificate and keys for every node."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="DIR")]
    """New folder for the keys."""
    host: tuple[str, ...]
    """Names and addresses at which machines reach the SuperLink."""
    nodes: int = 3
    """Number of node keys."""
    days: int = 365
    """How long the certificates are valid."""

    def carry_out(self) -> int:
        """Write the keys."""
        require("cryptography", extra="flower")
        from fedtiny.flower import signing_keys
        from fedtiny.flower.trial import certificates

        certificates.make(self.folder, self.host, self.nodes, self.days)
        signing_keys.make(self.folder, self.nodes)
        print(
            f"in {quoted(self.folder)}: ca.crt for every machine; server.pem and server.key for the"
        )
        print(f"SuperLink; {self.nodes} node keys, node0 and so on, with their public keys (.pub);")
        print(
            "for secure aggregation a key a node, secagg0 and so on, and secagg-keys for every node"
        )
        return 0


@dataclass(frozen=True)
class Up:
    """Start a SuperLink and SuperNodes on this machine for a trial, and stop them in the end.

    With an app, run it and stop when it is over; without one, stop at Ctrl-C. Flower's telemetry
    is off.
    """

    app: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(name="APP")] = None
    """App folder to run."""
    nodes: int = 3
    """Number of SuperNodes, and of devices of the run."""
    tls: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Make a certificate authority, certificates and node keys; unknown nodes are refused."""
    secure_aggregation: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Give nodes keys for secure aggregation: then they take part in no other run. With an app,
    its privacy.secure_aggregation says that."""
    run_config: str = ""
    """More settings of the run, as in `flwr run --run-config`."""

    def carry_out(self) -> int:
        """Start all, wait, stop all; logs are kept if something went wrong."""
        require("cryptography", extra="flower")
        from fedtiny.flower.trial import local

        _check_nodes(self.nodes)
        secure, changes = self.secure_aggregation, Flat()
        if self.app:
            changes, secure = self._checked_changes(self.app)
        console = Console(highlight=False, soft_wrap=True)
        home = Path(tempfile.mkdtemp(prefix="fedtiny-flower-")) / "flower"
        stop_on_signals()
        console.print(f"Flower's telemetry is off; logs and keys are in {home}")
        failed = True
        try:
            started = local.federation(home, self.nodes, self.tls, console.print, secure)
            with started as federation:
                if self.app:
                    failed = not federation.run(self.app, apps.write_changes(changes))
                else:
                    self._wait(federation, console)
                    failed = False
        except KeyboardInterrupt as stopped:
            failed = False
            if self.app:
                console.print(f"stopped; {self._going_on(changes)}", markup=False)
                if isinstance(stopped, Stopped):
                    stopped.said = True
            raise
        finally:
            if not failed:
                shutil.rmtree(home.parent, ignore_errors=True)
            console.print(f"all stopped; see the logs in {home}/logs" if failed else "all stopped")
        return int(failed)

    def _checked_changes(self, app: Path) -> tuple[Flat, bool]:
        """What --run-config and --nodes change of an app, refused before anything is started.

        And whether its replies are masked.
        """
        settings_of_app = apps.read_app(app)
        changes = apps.parse_changes(self.run_config)
        if "fleet.devices" in changes:
            raise ConfigError("--nodes is the number of devices; leave fleet.devices out")
        changes = {"fleet.devices": self.nodes, **changes}
        settings, config = apps.read_changed(settings_of_app, changes)
        methods.find(config.method)
        models.kind(config.model)
        run = user_path(settings.run, "flower.run")
        if not settings.resume and run.is_dir() and any(run.iterdir()):
            raise FedTinyError(
                f"{run} holds a run already; {self._going_on(changes)}, "
                "or begin another with --run-config 'flower.run=\"runs/NAME\"'"
            )
        return changes, config.privacy.secure_aggregation

    def _going_on(self, changes: Flat) -> str:
        assert self.app
        own = {name: value for name, value in changes.items() if name != "fleet.devices"}
        tls = " --tls" if self.tls else ""
        order = f"fedtiny flower up {quoted(self.app)} --nodes {self.nodes}{tls}"
        resumed = shlex.quote(apps.write_changes({**own, "flower.resume": True}))
        return f"continue it with: {order} --run-config {resumed}"

    def _wait(self, federation: "Federation", console: Console) -> None:
        console.print("run an app from another terminal, Ctrl-C here stops all:")
        flags = f"FLWR_HOME={quoted(federation.home)} FLWR_TELEMETRY_ENABLED=0 "
        flags += "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"
        own = f"--run-config 'fleet.devices={self.nodes}'"
        console.print(f"  {flags} flwr run APP trial --stream {own}", markup=False)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                federation.processes.check()
                time.sleep(1)


@dataclass(frozen=True)
class Account:
    """Show how many questions a node has answered under secure aggregation, with which noise."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="FILE")]
    """The node's account: the path of its secagg-key with .account after it, if not set."""

    def carry_out(self) -> int:
        """Print a line for each session of a run, and the sum."""
        from fedtiny.flower.question_account import QuestionAccount

        if not self.file.is_file():
            raise FedTinyError(f"{self.file} is no file; give the .account beside the node's key")
        counts = QuestionAccount(self.file).counts()
        for session, noises in counts.items():
            least = f"least noise multiplier {min(noises):g}" if min(noises) else "without noise"
            print(f"session {session[:8]}: {plural(len(noises), 'question')}, {least}")
        print(f"{plural(sum(map(len, counts.values())), 'question')} in all")
        return 0


def _check_nodes(nodes: int) -> None:
    if nodes < 1:
        raise FedTinyError(f"--nodes must be at least 1, got {nodes}")


def command(arguments: list[str]) -> int:
    """Parse and carry out."""
    asked: Init | Keys | Up | Account = tyro.extras.subcommand_cli_from_dict(
        {"init": Init, "up": Up, "keys": Keys, "account": Account},
        prog="fedtiny flower",
        description="Real devices over Flower.",
        args=arguments,
    )
    return asked.carry_out()
