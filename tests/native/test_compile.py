"""The native library is compiled for what the compiler compiles for, not for this machine."""

import shutil
import subprocess

import pytest

from fedtiny.native.compile import SOURCES, CannotCompileError, build

from .fuzz import DRIVER

COMPILER = """#!/bin/sh
# Tells its macros, notes its flags, and makes empty files.
case " $* " in *" -dM "*) printf '#define %s 1\\n' {macros}; exit ;; esac
echo "$*" >> {notes}
while [ $# -gt 1 ]; do shift; done
: > "$1"
"""
CROSS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}
MISSING = [package for tool, package in CROSS.items() if not shutil.which(tool)]


@pytest.mark.parametrize(
    ("macros", "sets", "complete"),
    [
        ("__x86_64__ __ELF__", {"sse2", "avx2", "avx512"}, True),
        ("__aarch64__ __ELF__", {"neon"}, True),
        ("__arm__ __ARM_NEON __ELF__", {"plain"}, True),
        ("__i386__ __ELF__", {"plain"}, True),
        ("__aarch64__ __APPLE__", {"neon"}, False),
    ],
)
def test_instruction_sets_are_those_of_the_compiler(macros, sets, complete, tmp_path, monkeypatch):
    notes, compiler = tmp_path / "notes", tmp_path / "cross-g++"
    compiler.write_text(COMPILER.format(macros=macros, notes=notes))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    build(tmp_path / "library.so")
    *compiled, linked = notes.read_text().splitlines()
    kernels = [line for line in compiled if "kernels.cpp" in line]
    assert {line.partition("-DFEDTINY_ISA=")[2].split()[0] for line in kernels} == sets
    assert any("-mavx512f" in line for line in kernels) == ("avx512" in sets)
    assert ("-Wl,-z,defs" in linked) == complete
    assert len(compiled) == len(list(SOURCES.glob("*.cpp"))) - 1 + len(sets)


def test_a_compiler_that_does_not_tell_its_macros_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(CannotCompileError, match=r"false .*-dM -E"):
        build(tmp_path / "library.so")


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"needs Debian's {', '.join(MISSING)}")
def test_a_library_for_aarch64_under_qemu(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "aarch64-linux-gnu-g++")
    library = build(tmp_path / "libfuzzed.so", strict=True)
    driver = tmp_path / "fuzz"
    order = ["aarch64-linux-gnu-g++", "-std=c++17", "-O1", f"-I{SOURCES}", DRIVER, library]
    subprocess.run([*order, f"-Wl,-rpath,{tmp_path}", "-pthread", "-o", driver], check=True)
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    run = subprocess.run(
        [*emulator, driver, "20000", "3"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert " calls, " in run.stdout
