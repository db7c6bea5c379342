"""Ways to damage a run folder: bits, types, links, pipes, and lies under a checksum that fits."""

import copy
import json
import os
import random
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from safetensors import SafetensorError

from .forgery import deep_table, forge

ODD = (
    *(None, True, -1, 0, 3, 0.5, -0.5, 10**18, 10**30, 1e300, -1e39, float("nan"), float("inf")),
    *("", "x", "3", "\x1b[2J\n\r", "../../etc/passwd", "A" * 5000, [], [[]], {}, {"a": {"b": 1}}),
    *("a\0b", "a\udcffb", "~nosuchuser/x", deep_table(), [[1.0] * 3] * 3, 1 << 63, -0.0, 5e-324),
)
ODD_TOML = (
    *("true", "-1", "0", "3", "0.5", "1e300", "nan", "inf", "99999999999999999999", '""', '"x"'),
    *("900000000", "9999999", "1000000000000"),
    *('"\\u001b[2J"', "[]", "[[1]]", "{}", "2026-01-01", "[" * 200, '"' + "A" * 3000 + '"'),
    *('"a\\u0000b"', '"~nosuchuser/x"', '"/dev/zero"', "{a = " * 300 + "1" + "}" * 300, "-0.0"),
)
ODD_KEYS = ("9" * 5000, "-1", "1" * 12, "\u0663", "")
LARGE = 1 << 20
DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000

Damage = Callable[[Path, random.Random], str]


def of_bytes(path: Path, draw: random.Random) -> str:
    """Bits flipped, ends cut off, bytes put in, taken out or overwritten."""
    data = bytearray(path.read_bytes())
    place, kind = draw.randrange(len(data) + 1), draw.randrange(6)
    if kind == 0 and data:
        data[place % len(data)] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        data[place:place] = draw.randbytes(draw.randint(1, 40))
    elif kind == 3:
        del data[place : place + draw.randint(1, 20)]
    elif kind == 4:
        data[place : place + 8] = draw.choice([b"\0" * 8, b"\xff" * 8, b"99999999", b"}}}}]]]]"])
    else:
        data = bytearray(draw.choice([b"", b"{}", b"[]", b"null", b"\0" * 64, DEEP, b"\xff\xfe"]))
    path.write_bytes(data)
    return f"bytes {kind} at {place}"


def of_file(path: Path, draw: random.Random) -> str:
    """Gone, or another kind of file: a pipe, a folder, a device, a link to somebody else's."""
    kind = draw.choice(["gone", "pipe", "folder", "link", "dangling", "device", "loop", "huge"])
    if kind != "huge":
        path.unlink()
    elsewhere = _elsewhere(path)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(elsewhere / draw.choice(["thesis.tex", "folder"]))
        case "dangling":
            path.symlink_to(elsewhere / "nothing")
        case "device":
            path.symlink_to(draw.choice(["/dev/zero", "/dev/full", "/dev/null"]))
        case "loop":
            path.symlink_to(path)
        case "huge":
            os.truncate(path, 1 << 42)
    return kind


def _elsewhere(path: Path) -> Path:
    """Somebody else's folder, beside the one that is damaged."""
    return next(p / "elsewhere" for p in path.parents if (p / "elsewhere").exists())


def of_values(path: Path, draw: random.Random) -> str:
    """A value of another type or size, or none, behind checksums that fit."""
    if path.suffix == ".toml":
        return _toml(path, draw)
    if path.suffix in (".safetensors", ".packed"):
        return forge(path, draw, changed)
    if path.suffix == ".csv":
        return _csv(path, draw)
    if path.suffix == ".npz":
        return _arrays(path, draw)
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        if not lines:
            return of_bytes(path, draw)
        number = draw.randrange(len(lines))
        value = json.loads(lines[number])
        told = changed(value, draw)
        lines[number] = json.dumps(value)
        path.write_text("\n".join(lines) + "\n")
        return f"line {number}: {told}"
    if path.suffix != ".json":
        return of_bytes(path, draw)
    value = json.loads(path.read_text())
    told = changed(value, draw)
    path.write_text(json.dumps(value))
    return told


def changed(value: Any, draw: random.Random) -> str:
    """Change one value within plain data; says which."""
    where = []
    while isinstance(value, dict | list) and value:
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        where.append(str(key))
        if not isinstance(value[key], dict | list) or not value[key] or draw.random() < 0.2:
            odd = copy.deepcopy(draw.choice(ODD))
            if draw.random() < 0.2:
                del value[key]
                return f"{'.'.join(where)} deleted"
            if isinstance(value, dict) and draw.random() < 0.1:
                value[draw.choice(ODD_KEYS)] = value.pop(key)
                return f"{'.'.join(where)} under another key"
            value[key] = odd
            return f"{'.'.join(where)} = {odd!r:.40}"
        value = value[key]
    if isinstance(value, dict):
        value["more"] = copy.deepcopy(draw.choice(ODD))
    return f"{'.'.join(where)} nothing"


def _toml(path: Path, draw: random.Random) -> str:
    lines = path.read_text().splitlines()
    number = draw.choice([n for n, line in enumerate(lines) if "=" in line])
    name = lines[number].partition("=")[0].strip()
    odd = draw.choice(ODD_TOML)
    lines[number] = draw.choice([f"{name} = {odd}", "", f"un{name} = 1", f"{name} = {odd}\n" * 2])
    path.write_text("\n".join(lines))
    return f"{lines[number]!r:.60}"


CELLS = (
    "",
    " ",
    "x",
    "nan",
    "inf",
    "1e400",
    "-1",
    "0.5",
    "9" * 40,
    "\0",
    "a\nb",
    "é",
    '"',
    "\x1b[2J",
)


def _csv(path: Path, draw: random.Random) -> str:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row, cell = draw.randrange(len(rows)), draw.choice(CELLS)
    place = draw.randrange(len(rows[row]))
    if draw.random() < 0.2:
        del rows[row][place]
    else:
        rows[row][place] = cell
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return f"row {row}, cell {place} = {cell!r:.20}"


def _claims(path: Path) -> str:
    """Headers of arrays that are not there."""
    told = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 3)}
    with ZipFile(path, "w") as archive:
        for name in ("x", "y"):
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array_header_1_0(member, told)
    return "claims arrays"


def _arrays(path: Path, draw: random.Random) -> str:
    if draw.random() < 0.1:
        return _claims(path)
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}
    name = draw.choice(sorted(arrays))
    array = arrays[name]
    kinds = [array[:-1], array[:0], array[None], array.astype("float64") * 1e300, array * 0 - 1]
    kinds += [np.full(array.shape, np.nan), array.astype(str), np.array("x"), array.astype(bool)]
    with np.errstate(all="ignore"):
        choice = draw.randrange(len(kinds))
    arrays[name] = kinds[choice]
    draw.choice([np.savez, np.savez_compressed])(path, **arrays)
    return f"{name} {choice}"


LINKS = (
    *(".lock", "report.html", "model.packed", "result.json", "metrics.jsonl", "model.onnx"),
    *("checkpoint.safetensors", "report_figures", "model_c", ".spool", ".config.toml.tmp"),
    *("model.torch.safetensors", "model.int8.packed", "partition.safetensors", "versions.json"),
)


def of_outputs(path: Path, draw: random.Random) -> str:
    """A link to somebody else's file or folder in the place of what is written next."""
    place = path.parent / draw.choice(LINKS)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    target = "folder" if re.search("figures|_c$|spool", place.name) else "thesis.tex"
    place.symlink_to(_elsewhere(path) / target)
    return f"{place.name} -> {target}"


DAMAGES: dict[str, tuple[Damage, float]] = {
    "bytes": (of_bytes, 4),
    "values": (of_values, 6),
    "file": (of_file, 2),
    "outputs": (of_outputs, 1),
}
"""Each with how often it is done."""


UNREADABLE = (ValueError, LookupError, TypeError, SafetensorError, BadZipFile, RecursionError)


def damage(folder: Path, draw: random.Random) -> str:
    """Do something to a file of a run folder; says what and to which."""
    usual = [file for file in sorted(folder.rglob("*")) if stat.S_ISREG(file.lstat().st_mode)]
    known = [
        f for f in usual if f.name not in (".lock", "report.html") and f.stat().st_size < LARGE
    ]
    file = draw.choice(known)
    kinds, weights = zip(*DAMAGES.values(), strict=True)
    kind = draw.choices(kinds, weights)[0]
    try:
        told = kind(file, draw)
    except UNREADABLE:  # what an earlier damage left of it
        told = of_bytes(file, draw)
    return f"{file.name}: {told}"
