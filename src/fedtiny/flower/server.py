"""The ServerApp: the same server as in a simulation, with Flower's nodes behind its transport."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedtiny.errors import FedTinyError
from fedtiny.finish import finish
from fedtiny.flower import settings as run_settings
from fedtiny.flower.fleet import FlowerFleet
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Lines
from fedtiny.runs.runner import resume, run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play a run from its start, or continue the one in its folder."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        _play(grid, context, console)
    except FedTinyError as error:
        console.print(f"fedtiny: error: {error}", markup=False)
        raise


def _play(grid: Grid, context: Context, console: Console) -> None:
    settings, config = run_settings.read(context.run_config)
    folder = RunFolder(Path(settings.run).expanduser().absolute())
    fleet = FlowerFleet(grid, settings, folder, lambda line: console.print(line, markup=False))
    if settings.resume:
        result = resume(folder.path, reporter=Lines(console), fleet=fleet)
    else:
        result = run(config, out=folder.path, reporter=Lines(console), fleet=fleet)
    finish(result)
