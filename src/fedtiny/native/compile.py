"""Compile the native library with the C++ compiler at hand; needs nothing but Python."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = Path(__file__).parent / "_fedtiny_native.so"

COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread")
FAST = ("-O3", "-DNDEBUG", "-ffp-contract=fast")
STRICT = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
SANITIZED = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)

X86 = {
    "sse2": ("-msse2",),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ),
}
INSTRUCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": X86,
    "amd64": X86,
    "aarch64": {"neon": ()},
    "arm64": {"neon": ()},
}


class CannotCompileError(Exception):
    """There is no compiler, or it failed."""


def compiler() -> list[str] | None:
    """The C++ compiler to use: that of the environment variable CXX, or the first one found."""
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    return next(
        ([path] for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None
    )


def build(target: Path = LIBRARY, *, sanitize: bool = False, strict: bool = False) -> Path:
    """Compile the library to `target`; `strict` makes warnings errors."""
    command = compiler()
    if command is None:
        raise CannotCompileError("there is no C++ compiler; set CXX to use one by name")
    flags = [*COMMON, *(SANITIZED if sanitize else FAST), *(STRICT if strict else ("-w",))]
    with tempfile.TemporaryDirectory() as folder:
        jobs = _jobs(command, flags, Path(folder))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, [job for job, _ in jobs]))
        library = Path(folder) / target.name
        objects = [str(made) for _, made in jobs]
        link = SANITIZED if sanitize else ("-O3",)
        _run([*command, "-shared", "-pthread", *link, *objects, "-o", str(library)])
        shutil.copyfile(library, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)
    return target


def _jobs(
    command: Sequence[str], flags: Sequence[str], folder: Path
) -> list[tuple[list[str], Path]]:
    """One compilation a source, and one of the kernels for each instruction set."""
    machine = platform.machine().lower()
    sets = INSTRUCTIONS.get(machine, {"plain": ()})
    jobs = []
    for source in sorted(SOURCES.glob("*.cpp")):
        variants = sets if source.name == "kernels.cpp" else {"": ()}
        for name, own in variants.items():
            made = folder / f"{source.stem}{name}.o"
            named = [f"-DFEDTINY_ISA={name}"] if name else []
            jobs.append(
                ([*command, *flags, *own, *named, "-c", str(source), "-o", str(made)], made)
            )
    return jobs


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompileError(f"the compiler cannot be run: {error}") from error
    if done.returncode:
        shown = "\n".join(done.stderr.splitlines()[:20])
        raise CannotCompileError(f"{shlex.join(command)}\n{shown}")


if __name__ == "__main__":
    sys.stdout.write(f"{build(strict=True)}\n")
