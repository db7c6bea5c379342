"""Compile the native library with the C++ compiler at hand; needs nothing but Python."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = Path(__file__).parent / "_fedtiny_native.so"

COMMON = ("-std=c++17", "-fvisibility=hidden")
SHARED = ("-fPIC", "-pthread")
SINGLE_THREAD = ("-DFEDTINY_SINGLE_THREAD",)
FAST = ("-O3", "-DNDEBUG", "-ffp-contract=fast")
STRICT = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
SANITIZED = (
    *("-Og", "-g1", "-fno-omit-frame-pointer"),
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
ARM32: dict[str, tuple[str, ...]] = {
    # GCC leaves NEON of 32 bits alone, which has no subnormal numbers, unless arithmetic may be
    # unsafe; what else that allows is taken back.
    "neon": (
        *("-funsafe-math-optimizations", "-fno-associative-math", "-fno-reciprocal-math"),
        *("-fsigned-zeros", "-ftrapping-math"),
    )
}
INSTRUCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "__x86_64__": X86,
    "__aarch64__": {"neon": ()},
    "__ARM_NEON": ARM32,
}
"""Flags of each instruction set, by the macro of an architecture; all others have plain C++."""


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


def build(
    target: Path = LIBRARY,
    flags: Sequence[str] = (),
    *,
    sanitize: bool = False,
    strict: bool = False,
) -> Path:
    """Compile the library to `target`; `strict` makes warnings errors.

    A target that ends in `.a` is a static library of one thread, for a program without Python.
    `flags` follow the compiler's others.
    """
    static = target.suffix == ".a"
    command = compiler()
    if command is None:
        raise CannotCompileError("there is no C++ compiler; set CXX to use one by name")
    command += [*COMMON, *(SINGLE_THREAD if static else SHARED)]
    command += [*(SANITIZED if sanitize else FAST), *(STRICT if strict else ("-w",)), *flags]
    macros = _macros(command)
    with tempfile.TemporaryDirectory() as folder:
        jobs = _jobs(command, instruction_sets(macros), Path(folder))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, [job for job, _ in jobs]))
        library = Path(folder) / target.name
        objects = [str(made) for _, made in jobs]
        if static:
            archiver = run([*command, "-print-prog-name=ar"]).strip()
            run([archiver, "rcs", str(library), *objects])
        else:
            complete = ("-Wl,-z,defs",) if "__ELF__" in macros else ()  # no symbol is undefined
            run([*command, "-shared", *complete * (not sanitize), *objects, "-o", str(library)])
        shutil.copyfile(library, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)
    return target


def _macros(command: Sequence[str]) -> set[str]:
    """The macros that a compiler defines: what it compiles for, on whatever machine it runs."""
    lines = run([*command, "-dM", "-E", "-x", "c++", os.devnull]).splitlines()
    return {parts[1] for line in lines if (parts := line.split())[:1] == ["#define"]}


def instruction_sets(macros: Container[str]) -> dict[str, tuple[str, ...]]:
    """The instruction sets that kernels are compiled for, and the flags of each.

    >>> instruction_sets({"__aarch64__", "__ELF__"}), instruction_sets({"__arm__"})
    ({'neon': ()}, {'plain': ()})
    """
    found = (sets for macro, sets in INSTRUCTIONS.items() if macro in macros)
    return next(found, {"plain": ()})


def _jobs(
    command: Sequence[str], sets: Mapping[str, tuple[str, ...]], folder: Path
) -> list[tuple[list[str], Path]]:
    """One compilation a source, and one of the kernels for each instruction set."""
    jobs = []
    for source in sorted(SOURCES.glob("*.cpp")):
        variants = sets if source.name == "kernels.cpp" else {"": ()}
        for name, own in variants.items():
            made = folder / f"{source.stem}{name}.o"
            named = [f"-DFEDTINY_ISA={name}"] if name else []
            jobs.append(([*command, *own, *named, "-c", str(source), "-o", str(made)], made))
    return jobs


def run(command: Sequence[str]) -> str:
    """What a command of the compiler prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompileError(f"the compiler cannot be run: {error}") from error
    if done.returncode:
        shown = "\n".join(done.stderr.splitlines()[:20])
        raise CannotCompileError(f"{shlex.join(command)}\n{shown}")
    return done.stdout


if __name__ == "__main__":
    place = Path(sys.argv[1]) if sys.argv[1:] else LIBRARY
    sys.stdout.write(f"{build(place, sys.argv[2:], strict=True)}\n")
