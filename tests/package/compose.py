"""The compose file as Docker reads it, and a way to play it on this machine without containers."""

import os
import shlex
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import yaml

from fedtiny.flower.trial.local import Processes, free_port

from .tools import ROOT

FILE = ROOT / "docker" / "compose.yaml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]
HOME = "/home/fedtiny/"


def words_of(service):
    """The command of a service as a list of arguments; a dollar sign is written twice."""
    command = SERVICES[service]["command"]
    words = shlex.split(command) if isinstance(command, str) else command
    return [word.replace("$$", "$") for word in words]


def mounts(service):
    """Volumes by their place in the container."""
    found = (volume.split(":") for volume in SERVICES[service]["volumes"])
    return {place: volume for volume, place, *_ in found}


class Machine:
    """Services as processes: a volume is a folder, and every machine is this one."""

    def __init__(self, folder, processes):
        self.folder, self.processes, self.port = folder, processes, free_port()

    def start(self, service, changes=None):
        """Start a service in a home of its own; `changes` are other words for its command."""
        home = self.folder / "homes" / service
        home.mkdir(parents=True)
        self.processes.environment |= {"HOME": str(home), "FLWR_HOME": str(home / "flower")}
        places = {place: self.folder / volume for place, volume in mounts(service).items()}
        for place, there in places.items():
            there.mkdir(exist_ok=True)
            if place.startswith(HOME):
                (home / place.removeprefix(HOME)).symlink_to(there)
        address = {"superlink:8000": f"localhost:{self.port}", "8000": self.port}
        script = shlex.join(words_of(service))
        for old, new in {**places, **address, **(changes or {})}.items():
            script = script.replace(old, str(new))
        return self.processes.start(service, "sh", ["-ec", f"cd {home}; exec {script}"])

    def wait_until_healthy(self, service, seconds):
        """Until the check that Docker would make of a service passes."""
        kind, program, *arguments = SERVICES[service]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "python")
        words = [
            word.replace(f"'{service}', 8000", f"'localhost', {self.port}") for word in arguments
        ]
        until = time.monotonic() + seconds
        while subprocess.run([sys.executable, *words], capture_output=True, check=False).returncode:
            assert time.monotonic() < until, self.processes.named(service).last_words()
            assert self.processes.named(service).is_alive
            time.sleep(0.2)


@contextmanager
def machine(folder, environment):
    """A place to start services in, all of which are stopped in the end."""
    (folder / "logs").mkdir(parents=True)
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    processes = Processes(folder / "logs", {**os.environ, **programs, **environment})
    try:
        yield Machine(folder, processes)
    finally:
        processes.stop()
