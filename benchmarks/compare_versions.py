"""Two versions of fedtiny side by side: does the same seed still give the same bytes?

Both source trees play the same tiny runs on the digits, on this machine and with this Python: every
method, torch and native devices, one worker and two, and a few with settings out of the ordinary.
Then runs that the old version began and a kill stopped halfway are resumed by the new one, and held
against the old version's own, unbroken. Compared are the model, the mask, the rest of the
checkpoint, the packed model's arrays, the selection, the metrics and the result, all without
seconds, and without counted bytes if the two speak different wire formats. Fails if anything
differs.

    python benchmarks/compare_versions.py OLD NEW [--only PART ...] [--new-flags='--seed 1']

OLD and NEW are folders with src/fedtiny, such as two work trees of git. A native library that is
missing or older than its sources is compiled in a copy, so neither tree is changed. Digests are not
kept anywhere: the last bits of a run depend on the processor.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES: dict[str, str] = {}  # of a run folder
FIELDS: dict[str, str] = {}  # of metrics.jsonl, selection.json and result.json
ARRAYS: dict[str, str] = {}  # of the checkpoint and the packed model

LEFT_OUT = ["seconds", "bounded"]  # fields that begin so

METHODS = (
    *("fedavg", "fl_pqsu", "snip", "synflow", "grasp"),
    *("prunefl", "feddst", "lotteryfl", "small_model", "fedtiny"),
    *("set", "ssfl", "fedsgc", "fedmef", "fedrts", "fedfit", "fedtiny_flow"),
)
BACKENDS = ("torch", "native")
ROUNDS = 5
STOPPED_AFTER = 2
TINY = (
    *("--simulator", "reference", "--threads", "1", "--rounds", str(ROUNDS), "--no-report"),
    *("--model", "resnet18", "--width", "4", "--density", "0.1"),
    *("--data.limit-train", "240", "--data.limit-test", "60", "--fleet.devices", "4"),
    *("--train.local-epochs", "2", "--train.batch-size", "16", "--selection.pool-size", "3"),
    *("--pruning.delta-r", "1", "--pruning.r-stop", "3", "--pruning.iterations", "5"),
)
UNUSUAL = {
    "wider": "--width 8 --density 0.02",
    "vgg11_small": "--model vgg11_small",
    "small": "--model small",
    "encoded": "--fleet.wire encode",
    "failing and late": "--fleet.fail-rate 0.2 --fleet.straggler-rate 0.2",
    "few are asked": "--fleet.fraction 0.5 --eval-devices",
    "median": "--robustness.mean median",
    "trimmed, clipped": "--fleet.devices 6 --robustness.mean trimmed --robustness.clip-norm 0.1",
    "feddst, trimmed": "--method feddst --robustness.mean trimmed",
    "entire": "--pruning.granularity entire",
    "layer, forward": "--pruning.granularity layer --pruning.order forward",
    "reclaim": "--pruning.reclaim --density 0.02",
    "vanilla": "--selection.kind vanilla",
    "pooled": "--selection.variance pooled",
    "two passes": "--selection.passes 2",
    "no selection": "--selection.kind none",
    "sgd": "--train.optimizer sgd --data.cutout 2",
    "snip, global": "--method snip --pruning.budgets global",
    "synflow, global": "--method synflow --pruning.budgets global",
    "shards": "--fleet.partition shards",
    "iid, no augmenting": "--fleet.partition iid --data.no-augment",
    "momentum": "--recipe momentum --server.average ema",
    "fedrts, erk": "--method fedrts --pruning.budgets erk",
    "private": "--privacy.noise-multiplier 0.5",
    "secure": "--privacy.secure-aggregation",
    "secure, noise of devices": "--privacy.secure-aggregation --privacy.noise devices "
    "--privacy.sampling fixed --privacy.noise-multiplier 0.5 --privacy.clip 1",
    "paper's budget": "--memory-budget 70KB --memory-model paper",
}
UNUSUAL_NATIVE = {
    "float16": "--device.storage float16",
    "recompute": "--device.recompute",
    "remove dead": "--device.remove-dead --density 0.02",
    "device's budget": "--memory-budget 400KB --memory-model device",
}


@dataclass(frozen=True)
class Case:
    """A run that both versions play."""

    name: str
    backend: str
    workers: int
    flags: tuple[str, ...]
    resumed: bool = False

    @property
    def arguments(self) -> list[str]:
        backend = ["--device-backend", self.backend, "--workers", str(self.workers)]
        return ["run", *TINY, *backend, *self.flags]

    @property
    def folder(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in f"{self}")

    def __str__(self) -> str:
        return f"{self.name}, {self.backend}, {self.workers}"


def cases() -> Iterator[Case]:
    """All runs: methods x backends x workers, each also stopped and resumed; then the others."""
    for method in METHODS:
        for backend in BACKENDS:
            yield Case(method, backend, 1, ("--method", method), resumed=True)
            yield Case(method, backend, 2, ("--method", method))
    for name, flags in UNUSUAL.items():
        for backend in BACKENDS:
            yield Case(name, backend, 1, tuple(flags.split()))
    for name, flags in UNUSUAL_NATIVE.items():
        yield Case(name, "native", 1, tuple(flags.split()))


class Version:
    """One of the two versions: a process that has imported it and plays a run at a time."""

    def __init__(self, tree: Path, work: Path, more: Sequence[str] = ()) -> None:
        self.work, self.more = work, list(more)
        work.mkdir()
        source = with_library(tree / "src", work)
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_WAIT_POLICY": "passive"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--play", str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def __call__(self, *arguments: str, stop_after: int = 0) -> tuple[int, str]:
        """The exit code and output of a command, which may be killed after a round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"arguments": arguments, "stop_after": stop_after}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        ended = json.loads(self.process.stdout.readline())
        return ended["code"], ended["output"]

    def run(self, case: Case, stop_after: int = 0) -> Path:
        """The folder of a run, finished, or killed after this many rounds."""
        out = self.work / (case.folder + ("_stopped" if stop_after else ""))
        order = [*case.arguments, *self.more, "--out", str(out)]
        code, output = self(*order, stop_after=stop_after)
        expected = -signal.SIGKILL if stop_after else 0
        if code != expected:
            raise RuntimeError(f"exit code {code}: {output.strip().splitlines()[-1:]}")
        return out

    def close(self) -> None:
        self.process.communicate()


def with_library(source: Path, work: Path) -> Path:
    """The sources with a native library of theirs: as they are, or a copy that is compiled."""
    compiling = _compiling(source)
    made = compiling.LIBRARY.stat().st_mtime if compiling.LIBRARY.exists() else 0
    if all(path.stat().st_mtime <= made for path in compiling.SOURCES.iterdir()):
        return source
    print(f"compiling the native library of {source}", flush=True)
    copy = shutil.copytree(source, work / "src", ignore=shutil.ignore_patterns("*.so"))
    _compiling(copy).build()
    return copy


def _compiling(source: Path) -> Any:
    path = source / "fedtiny" / "native" / "compile.py"
    spec = importlib.util.spec_from_file_location("fedtiny_compile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def essence(folder: Path) -> dict[str, str]:
    """Digests of everything in a run folder that only the seed and the settings decide."""
    checkpoint = _arrays(folder, "checkpoint.safetensors")
    mask = {name: array for name, array in checkpoint.items() if name.startswith("mask.")}
    return {
        "model": _digest(_arrays(folder, "model.safetensors")),
        "mask": _digest(mask),
        "checkpoint": _digest(checkpoint),
        "packed": _digest(_arrays(folder, "model.packed")),
        "partition": _digest(_arrays(folder, "partition.safetensors")),
        "selection": _digest(_values(folder, "selection.json")),
        "metrics": _digest(_values(folder, "metrics.jsonl")),
        "result": _digest(_values(folder, "result.json")),
    }


def _file(folder: Path, name: str) -> Path:
    newer = folder / FILES.get(name, name)
    return newer if newer.exists() else folder / name


def _arrays(folder: Path, name: str) -> dict[str, str]:
    """The arrays of a file: type, shape and bytes of each.

    What is told beside them may change, such as the version, and with it the digest of a file.
    """
    from safetensors.numpy import load

    arrays = load(_file(folder, name).read_bytes())
    return {
        ARRAYS.get(key, key): f"{array.dtype} {array.shape} {array.tobytes().hex()}"
        for key, array in arrays.items()
        if key != "digest"
    }


def _values(folder: Path, name: str) -> list[Any]:
    """What a file of JSON or of lines of JSON tells, but for the time it took."""
    path = _file(folder, name)
    if not path.exists():
        return []
    text = path.read_text()
    texts = text.splitlines() if path.suffix == ".jsonl" else [text]
    return [_comparable(json.loads(part)) for part in texts]


def _comparable(value: Mapping[str, Any]) -> dict[str, Any]:
    """All but what is left out, and of devices that failed only who they were."""
    kept = {key: item for key, item in value.items() if not key.startswith(tuple(LEFT_OUT))}
    named = {FIELDS.get(key, key): item for key, item in kept.items()}
    return {key: sorted(item) if key == "failed" else item for key, item in named.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def compared(case: Case, old: Version, new: Version) -> tuple[list[str], str]:
    """In what the versions differ in a case, and the digest of the old one's model."""
    with ThreadPoolExecutor(2) as both:
        playing = [both.submit(_outcome, version, case) for version in (old, new)]
        before, after = (done.result() for done in playing)
    if isinstance(before, str) or isinstance(after, str):
        same = before == after
        return ([] if same else [f"old: {before}; new: {after}"]), f"neither can: {before}"
    return _differences(before, after), before["model"][:12]


def _outcome(version: Version, case: Case) -> dict[str, str] | str:
    """What a run came to, or why it did not."""
    try:
        return essence(version.run(case))
    except (RuntimeError, OSError) as error:
        return f"{error}"


def resumed(case: Case, old: Version, new: Version) -> tuple[list[str], str]:
    """In what the old version's run differs from one that the new version resumed."""
    unbroken = essence(old.work / case.folder)
    folder = old.run(case, stop_after=STOPPED_AFTER)
    lines = _values(folder, "metrics.jsonl")
    code, output = new("resume", str(folder))
    if code or len(lines) != STOPPED_AFTER:
        return [f"exit code {code} after {len(lines)} rounds: {output.strip()[-300:]}"], ""
    return _differences(unbroken, essence(folder)), unbroken["model"][:12]


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [part for part in before if before[part] != after[part]]


def compare(old: Version, new: Version, only: Sequence[str]) -> tuple[int, int]:
    """Print the table; how many rows there are, and how many of them differ."""
    wanted = [case for case in cases() if not only or any(part in f"{case}" for part in only)]
    different = 0
    for case in wanted:
        different += _row(f"{case}", *compared(case, old, new))
    stopped = [case for case in wanted if case.resumed and (old.work / case.folder).exists()]
    for case in stopped:
        different += _row(f"{case}, resumed", *resumed(case, old, new))
    return len(wanted) + len(stopped), different


def _row(name: str, differences: Sequence[str], told: str) -> bool:
    verdict = f"DIFFERENT: {', '.join(differences)}" if differences else "equal"
    print(f"{name:34} {told:14} {verdict}", flush=True)
    return bool(differences)


def play(source: Path) -> None:
    """Carry out orders, a JSON line each, in children of this process, which has imported all."""
    import torch._dynamo

    import fedtiny

    assert torch._dynamo  # what torch.optim imports when it is first used
    assert Path(fedtiny.__file__).is_relative_to(source), "another fedtiny stands before this one"
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(_carried_out(**json.loads(line))), flush=True)


def _carried_out(arguments: list[str], stop_after: int) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            _live(arguments, stop_after, output.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return {"code": code, "output": output.read()}


def _live(arguments: list[str], stop_after: int, output: int) -> None:
    """The whole life of a child."""
    code = 99
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if stop_after:
            _die_after(stop_after)
        from fedtiny.cli.main import dispatch

        code = dispatch(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_after(rounds: int) -> None:
    """Be killed as the checkpoint of a round has taken its place."""
    replace = os.replace

    def deadly(source: Any, target: Any) -> None:
        replace(source, target)
        metrics = Path(target).with_name("metrics.jsonl")
        lines = metrics.read_text().count("\n") if metrics.exists() else 0
        if "checkpoint" in Path(target).name and lines == rounds:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = deadly


def wire_format(tree: Path) -> str:
    """The version of the wire format that a tree's messages have."""
    files = sorted((tree / "src/fedtiny/federation/wire").glob("*.py"))
    text = "".join(file.read_text() for file in files)
    return text.partition("FORMAT_VERSION = ")[2].split()[0]


def main() -> None:
    """Compare two trees, or play one of them."""
    if sys.argv[1:2] == ["--play"]:
        return play(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name holds one of these")
    parser.add_argument("--new-flags", default="", help="given to the new version's runs besides")
    asked = parser.parse_args()
    formats = wire_format(asked.old), wire_format(asked.new)
    if formats[0] != formats[1]:
        print(f"wire formats {formats[0]} and {formats[1]}: bytes are not compared")
        LEFT_OUT.append("bytes")
    with tempfile.TemporaryDirectory() as folder:
        old = Version(asked.old.resolve(), Path(folder) / "old")
        new = Version(asked.new.resolve(), Path(folder) / "new", shlex.split(asked.new_flags))
        rows, different = compare(old, new, asked.only)
        old.close()
        new.close()
    print(f"{rows} comparisons, {different} different")
    sys.exit(1 if different or not rows else 0)


if __name__ == "__main__":
    main()
