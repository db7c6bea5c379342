"""The native library is compiled for what the compiler compiles for, not for this machine."""

import pytest

from fedtiny.native.compile import SOURCES, CannotCompileError, build

COMPILER = """#!/bin/sh
# Tells its macros, notes its flags, and makes empty files.
case " $* " in *" -dM "*) printf '#define %s 1\\n' {macros}; exit ;; esac
echo "$*" >> {notes}
while [ $# -gt 1 ]; do shift; done
: > "$1"
"""


@pytest.mark.parametrize(
    ("macros", "sets", "complete"),
    [
        ("__x86_64__ __ELF__", {"sse2", "avx2", "avx512"}, True),
        ("__aarch64__ __ARM_NEON __ELF__", {"neon"}, True),
        ("__arm__ __ARM_NEON __ELF__", {"neon"}, True),
        ("__arm__ __ELF__", {"plain"}, True),
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
