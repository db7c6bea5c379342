"""Build fedtiny-device, the program with which a device trains without Python.

    python -m fedtiny.native.device_program OUTPUT [--tls | --firmware DATA [--name NAME]]

CXX names a cross compiler (say, aarch64-linux-gnu-g++). The program is linked statically, so that
it runs on any Linux of its architecture; with --tls it can encrypt its connection, by mbedTLS; with
--firmware it is that of a bare Cortex-M7, which has its data in flash.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedtiny import __version__
from fedtiny.native import compile as native

SOURCES = native.SOURCES / "device"
POSIX = (SOURCES / "posix.cpp", SOURCES / "transport.cpp")
TLS = SOURCES / "tls.cpp"
SYSTEMS = (*POSIX, TLS, SOURCES / "cortex_m7.cpp")
SECTIONS = ("-ffunction-sections", "-fdata-sections")
SMALL = ("-Os", "-DNDEBUG")
EXACT = ("-ffp-contract=off", f'-DFEDTINY_VERSION="{__version__}"')
"""What a device works out beside the network is NumPy's to the bit: no fused multiply-adds."""
CORTEX_M7 = (
    *("-mcpu=cortex-m7", "-mfpu=fpv5-d16", "-mfloat-abi=hard", "-mthumb"),
    *SMALL,
    *SECTIONS,
)
INCLUDED = """
.section .rodata.device_data, "a"
.balign 4
.global device_data_start, device_data_end
device_data_start: .incbin "{path}"
device_data_end:
"""
QUOTING = "'\"\\"
LINKING = ("-static", "-Wl,--gc-sections", "-s")
NO_SOURCE = ("-x", "c++", os.devnull)
LIBRARY = "libfedtiny.a"
MBEDTLS = ("-lmbedtls", "-lmbedx509", "-lmbedcrypto")


def build(
    target: Path,
    *,
    main: Sequence[Path] = POSIX,
    flags: Sequence[str] = SECTIONS,
    linking: Sequence[str] = LINKING,
    library: Path | None = None,
    parts: Path | None = None,
    sanitize: bool = False,
    strict: bool = False,
) -> Path:
    """Compile the program to `target`, with what is of one system in `main`.

    `parts` is a folder that `build_parts` has filled, and `library` a native library to link with;
    without them they are made, which takes most of the time.
    `flags` follow those of the native library and of the program, which is made small.
    """
    if not target.parent.is_dir():
        raise native.CannotCompileError(f"there is no folder {target.parent}; make it first")
    command = _command(flags, sanitize=sanitize)
    with tempfile.TemporaryDirectory() as folder:
        if parts is None:
            parts = Path(folder) / "parts"
            build_parts(parts, flags=flags, library=library, sanitize=sanitize, strict=strict)
        made = _compiled(command, main, Path(folder), strict=strict)
        made += [*map(str, sorted(parts.glob("*.o"))), str(library or parts / LIBRARY)]
        program = Path(folder) / "program"
        native.run([*command, *made, *linking, "-o", str(program)])
        shutil.copyfile(program, target)
        target.chmod(0o755)
    return target


def build_parts(
    folder: Path,
    *,
    flags: Sequence[str] = SECTIONS,
    library: Path | None = None,
    sanitize: bool = False,
    strict: bool = False,
) -> None:
    """Compile what programs for all systems have into a folder; a native library, if none."""
    command = _command(flags, sanitize=sanitize)
    folder.mkdir(exist_ok=True)
    if library is None:
        native.build(folder / LIBRARY, flags, sanitize=sanitize, strict=strict)
    sources = [path for path in sorted(SOURCES.glob("*.cpp")) if path not in SYSTEMS]
    _compiled(command, sources, folder, strict=strict)


def _command(flags: Sequence[str], *, sanitize: bool) -> list[str]:
    command = native.compiler()
    if command is None:
        raise native.CannotCompileError("there is no C++ compiler; set CXX to use one by name")
    kind = native.SANITIZED if sanitize else SMALL
    return [*command, *native.COMMON, *native.SINGLE_THREAD, *kind, *flags]


def _compiled(
    command: Sequence[str], sources: Sequence[Path], folder: Path, *, strict: bool
) -> list[str]:
    """The object files of the sources."""
    strictly = native.STRICT if strict else ("-w",)
    made = {source: str(folder / f"{source.stem}.o") for source in sources}
    jobs = [
        [*command, *strictly, *EXACT, f"-I{SOURCES}", "-c", str(source), "-o", place]
        for source, place in made.items()
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(native.run, jobs))
    return list(made.values())


def has_mbedtls() -> bool:
    """Whether the compiler finds mbedTLS."""
    try:
        native.run([*_command((), sanitize=False), "-E", "-include", "mbedtls/ssl.h", *NO_SOURCE])
    except native.CannotCompileError:
        return False
    return True


def build_with_tls(target: Path, *, parts: Path | None = None, strict: bool = False) -> Path:
    """Compile the program with TLS to `target`; static, if mbedTLS' static libraries are there."""
    command = _command(SECTIONS, sanitize=False)
    if not has_mbedtls():
        raise native.CannotCompileError(
            "the compiler does not find mbedTLS (mbedtls/ssl.h); install it, "
            "in Debian libmbedtls-dev, or say where it is, as in CXX='g++ -I... -L...'"
        )
    found = native.run([*command, "-print-file-name=libmbedtls.a"]).strip()
    linking = LINKING if Path(found).is_absolute() else LINKING[1:]
    return build(
        target,
        main=(*POSIX, TLS),
        flags=(*SECTIONS, "-DFEDTINY_TLS"),
        linking=(*MBEDTLS, *linking),
        parts=parts,
        strict=strict,
    )


def build_firmware(
    target: Path,
    data: Path,
    *,
    name: str = "cortex-m7",
    parts: Path | None = None,
    strict: bool = False,
) -> Path:
    """Compile the program of a bare Cortex-M7 to `target`, with a data file in its flash.

    `parts` are made by `build_parts` with the flags `CORTEX_M7`.
    """
    if not data.is_file():
        raise native.CannotCompileError(
            f"there is no data file {data}; write one with 'fedtiny data devices'"
        )
    for what, text in (("path of the data file", str(data.resolve())), ("name", name)):
        if any(sign in QUOTING or not sign.isprintable() for sign in text):
            raise native.CannotCompileError(
                f"the {what} goes into the sources, so it cannot have quotes or backslashes: {text}"
            )
    with tempfile.TemporaryDirectory() as folder:
        included = Path(folder) / "flash.S"
        included.write_text(INCLUDED.format(path=data.resolve()))
        return build(
            target,
            main=(SOURCES / "cortex_m7.cpp", included),
            flags=(*CORTEX_M7, f'-DFEDTINY_DEVICE_NAME="{name}"'),
            linking=(
                *("-nostartfiles", f"-T{SOURCES / 'cortex_m7.ld'}", "-Wl,--gc-sections"),
                "-Wl,--no-warn-rwx-segments",
            ),
            parts=parts,
            strict=strict,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "output", type=Path, help="the file to write: a program for what CXX compiles for"
    )
    parser.add_argument("--tls", action="store_true", help="with TLS by mbedTLS")
    parser.add_argument(
        "--firmware",
        type=Path,
        metavar="DATA",
        help="the firmware of a Cortex-M7 with this data file; needs CXX=arm-none-eabi-g++",
    )
    parser.add_argument("--name", default="cortex-m7", help="what the firmware calls itself")
    asked = parser.parse_args()
    if asked.tls and asked.firmware:
        parser.error("a firmware speaks over a serial line, which has no TLS")
    try:
        if asked.firmware:
            made = build_firmware(asked.output, asked.firmware, name=asked.name)
        elif asked.tls:
            made = build_with_tls(asked.output)
        else:
            made = build(asked.output)
    except native.CannotCompileError as error:
        sys.exit(f"fedtiny-device was not built: {error}")
    sys.stdout.write(f"{made}: {made.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
