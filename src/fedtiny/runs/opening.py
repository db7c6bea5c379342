"""What a run does before anything that takes time: it says what begins, and makes its folder.

Nothing here imports torch, which takes seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedtiny import config as configs
from fedtiny import methods, models
from fedtiny.config import Config
from fedtiny.paths import user_path
from fedtiny.process import launch
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.inputs import own_inputs

RUNS = Path("runs")


@contextmanager
def opened(config: Config, out: Path | None) -> Iterator[Path | None]:
    """Print the first line of a run and give its folder, or None if its name must wait.

    If the run ends before anything lies in the folder, it is removed again. Of several ranks, none
    makes it here: one that failed before it met the others would leave them waiting.
    """
    if launch().size > 1:
        yield out
        return
    known = as_run(config)
    made = _missing(out or RUNS)
    try:
        folder = None if out is None and _has_budget(config) else new_folder(known, out).path
        made += [folder] if folder and out is None else []
        print(first_line(known, folder), flush=True)
        yield folder
    except BaseException:
        for path in sorted(made, key=lambda path: -len(path.parts)):
            with suppress(OSError):  # it holds something
                path.rmdir()
        raise


def as_run(config: Config) -> Config:
    """The config with its preset, as its method takes it, as far as that is known so early."""
    if "model" not in own_inputs(config):
        models.kind(config.model)
    resolved = configs.resolve(config)
    return methods.create(resolved).resolve(resolved, lambda: 1)


def first_line(config: Config, folder: Path | None) -> str:
    """What begins, and where.

    >>> first_line(Config(density=0.1), Path("runs/a"))
    'starting fedtiny: resnet18 to density 0.1 on digits in runs/a'
    >>> first_line(Config(memory_budget="3MB"), None)
    'starting fedtiny: resnet18 to fit 3MB on digits'
    """
    budgets = [config.memory_budget, config.flops_budget and f"{config.flops_budget} FLOPs"]
    limits = " and ".join(filter(None, budgets))
    aim = f"to fit {limits}" if limits else f"to density {config.density:g}"
    where = f" in {folder}" if folder else ""
    return f"starting {config.method}: {config.model} {aim} on {config.data.name}{where}"


def new_folder(config: Config, out: Path | str | None) -> RunFolder:
    """A new run folder: the one that is asked for, or one below `runs` with a name that tells."""
    if out is not None:
        return RunFolder.create(user_path(out, "--out"))
    return RunFolder.create_below(RUNS, stem_of(config))


def stem_of(config: Config) -> str:
    """What a run is, as the name of its folder."""
    data, model = (name.rpartition(":")[2] for name in (config.data.name, config.model))
    return f"{config.method}-{data}-{model}-d{config.density:g}-s{config.seed}"


def _has_budget(config: Config) -> bool:
    """Whether the density, and with it the folder's name, has yet to be found."""
    return config.memory_budget is not None or config.flops_budget is not None


def _missing(path: Path) -> list[Path]:
    """The folders of a path that are not there yet."""
    return [own for own in (path, *path.parents) if not own.exists()]
