"""Python environments with fedtiny and some of what it depends on, and nothing else."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import fedtiny


def bare_python(place: Path, packages: Sequence[str]) -> Path:
    """The interpreter of a new environment that has these packages of this one's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    home = Path(np.__file__).parents[1]
    for name in packages:
        if (home / name).exists():
            (site / name).symlink_to(home / name)
    (site / "fedtiny.pth").write_text(f"{Path(fedtiny.__file__).parents[1]}\n")
    return place / "bin" / "python"
