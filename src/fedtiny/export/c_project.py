"""A model as a project for a board: its C code, a program that reads samples, a build file."""

from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from fedtiny.errors import plural
from fedtiny.export import c_runtime
from fedtiny.export.c_source import CReport, Source
from fedtiny.files import make_own_folder, write_atomically

Project = Literal["cmake", "platformio", "zephyr"]
SOURCES = {"cmake": "", "platformio": "src/", "zephyr": "src/"}
"""Where the sources of a project lie in its folder."""
FILES: dict[Project, tuple[str, ...]] = {
    "cmake": (
        *("CMakeLists.txt", "boards.cmake", "cortex-m.cmake", "cortex_m.ld.in", "README.md"),
        *("cortex_m.c", "desktop.c", "board.h", "classify.c"),
    ),
    "platformio": (
        *("platformio.ini", "README.md"),
        *("arduino.cpp", "desktop.c", "board.h", "classify.c"),
    ),
    "zephyr": ("CMakeLists.txt", "prj.conf", "README.md", "zephyr.c", "board.h", "classify.c"),
}
"""What a project has beside the model."""
SHARED = ("desktop.c", "board.h", "classify.c")
CODE = (".c", ".h", ".cpp")


def write_project(source: Source, out: Path, project: Project) -> CReport:
    """Write a project with the C code of a model into the folder `out`."""
    sources = SOURCES[project]
    texts = {
        f"{sources}{source.prefix}.c": source.model(),
        f"{sources}{source.prefix}.h": source.header(),
    }
    for name in FILES[project]:
        place = f"{sources}{name}" if name.endswith(CODE) else name
        texts[place] = _text(source, project, name)
    for name, text in texts.items():
        make_own_folder((out / name).parent)
        write_atomically(out / name, text.encode("ascii"))
    return CReport(source.table_bytes, source.ram_bytes, tuple(out / name for name in texts))


def _text(source: Source, project: Project, name: str) -> str:
    """A file of a project, under the names of this model."""
    folder = "shared" if name in SHARED else project
    held = files("fedtiny.export").joinpath("boards", folder, name).read_text(encoding="ascii")
    if name == "classify.c":
        return c_runtime.prefixed(Template(held).substitute(source.reads), source.prefix)
    macro = f"{source.prefix.upper()}_PROFILE"
    terms = {"prefix": source.prefix, "layout": _layout(source), "macro": macro}
    return Template(held).safe_substitute(terms)


def _layout(source: Source) -> str:
    """What a sample is, with its numbers."""
    channels, height, width = source.tiny.shape
    if source.is_signal:
        return (
            f"A sample is {channels} rows of {width} float32 values as they were measured,\n"
            "little-endian, as NumPy's `tofile` writes them."
        )
    return f"A sample is {plural(channels, 'plane')} of {height} x {width} bytes, row by row."
