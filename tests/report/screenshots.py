"""Make the pictures of the report and of the site under docs/figures again: `make screenshots`.

It trains the runs that are shown, so it takes minutes, and it needs Chromium.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from .browser import BINARY, browser

ROOT = Path(__file__).parents[2]
FIGURES, SITE = ROOT / "docs" / "figures", ROOT / "build" / "docs" / "index.html"
RUN = ("run", "--width", "16", "--rounds", "20", "--eval-devices")
COMPARED = (
    *("compare", "--methods", "fedavg", "fedtiny", "feddst", "synflow"),
    *("--density", "0.2", "0.05", "--width", "8", "--rounds", "12"),
)
COLORS, MOST_BYTES = 160, 200_000


def main() -> None:
    """Train, write the pages, and take a picture of each."""
    if BINARY is None:
        sys.exit("Chromium is not installed; on Debian it is the package chromium")
    with tempfile.TemporaryDirectory() as folder:
        run, compared = Path(folder) / "run", Path(folder) / "compared"
        fedtiny(*RUN, "--out", run)
        fedtiny(*COMPARED, "--out", compared)
        fedtiny("report", compared, "--out", compared / "report.html")
        pages = {
            "report": (run / "report.html", 1120, 1290, False),
            "report_dark": (run / "report.html", 1120, 760, True),
            "report_phone": (run / "report.html", 390, 1480, True),
            "report_runs": (compared / "report.html", 1120, 1290, False),
            "site": (SITE, 1120, 760, False),
        }
        with browser(Path(folder) / "profile") as page:
            for name, (path, width, height, dark) in pages.items():
                page.open(path, width, dark, height)
                page.screenshot(FIGURES / f"{name}.png", height)
                shrink(FIGURES / f"{name}.png")


def fedtiny(*words: object) -> None:
    """Give a command."""
    subprocess.run([sys.executable, "-m", "fedtiny", *map(str, words)], check=True)


def shrink(path: Path) -> None:
    """Keep a picture in few colors, so that the repository stays small."""
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{path} has {size:,} bytes, more than {MOST_BYTES:,}")
    print(f"{path}: {size:,} bytes")


if __name__ == "__main__":
    main()
