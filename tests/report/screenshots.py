"""Make the pictures of the report and of the site under docs/figures again: `make screenshots`.

It trains the runs that are shown, so it takes minutes, and it needs Chromium.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from .browser import BINARY, Browser, browser

ROOT = Path(__file__).parents[2]
FIGURES, SITE = ROOT / "docs" / "figures", ROOT / "build" / "docs" / "index.html"
RUN = ("run", "--width", "16", "--rounds", "20", "--eval-devices")
COMPARED = (
    *("compare", "--methods", "fedavg", "fedtiny", "feddst", "synflow"),
    *("--density", "0.2", "0.05", "--width", "8", "--rounds", "12"),
)
COLORS, MOST_BYTES = 160, 200_000
SCREEN, MARGIN = 760, 18  # pixels of height


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
            "report": (run / "report.html", 1120, False, 4),
            "report_dark": (run / "report.html", 1120, True, 2),
            "report_phone": (run / "report.html", 390, True, 2),
            "report_runs": (compared / "report.html", 1120, False, 4),
            "site": (SITE, 1280, False, 0),
        }
        with browser(Path(folder) / "profile") as page:
            for name, shown in pages.items():
                take(page, FIGURES / f"{name}.png", *shown)


def fedtiny(*words: object) -> None:
    """Give a command."""
    subprocess.run([sys.executable, "-m", "fedtiny", *map(str, words)], check=True)


def take(page: Browser, out: Path, path: Path, width: int, dark: bool, figures: int) -> None:
    """A picture of the top of a page, to the end of so many figures or, without any, a screen."""
    page.open(path, width, dark, SCREEN)
    bottom = f"document.querySelectorAll('figure')[{figures - 1}].getBoundingClientRect().bottom"
    page.screenshot(out, page.value(bottom) + MARGIN if figures else SCREEN)
    shrink(out)


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
