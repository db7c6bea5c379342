"""Generated C, compiled and run."""

import shutil
import subprocess

import numpy as np
import pytest

STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
FAST = ("-O2",)
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]

needs_compiler = pytest.mark.skipif(not COMPILERS, reason="needs a C compiler")


def compiled(folder, *flags, sources=("model.c", "main.c"), compiler=None):
    """The program made from a folder of sources; a warning is an error."""
    command = [
        compiler or COMPILERS[0],
        *STRICT,
        *(flags or FAST),
        *sources,
        "-o",
        "program",
        "-lm",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[:2000]
    return folder / "program"


def run(program, images, kind="values"):
    """Classes, names and logits that a program prints for images of bytes or normalised values.

    What a program of sensors reads without a flag is "raw".
    """
    flags = ["--values"] if images.dtype != np.uint8 and kind == "values" else []
    done = subprocess.run(
        [program, *flags], input=images.tobytes(), capture_output=True, check=False
    )
    assert not done.returncode, done.stderr.decode()[:2000]
    lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert len(lines) == len(images)
    return (
        np.array([int(line[0]) for line in lines]),
        [line[1] for line in lines],
        np.array([line[2:] for line in lines], dtype=np.float32),
    )
