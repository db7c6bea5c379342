"""Settings that were asked for in vain: nobody in the run reads them."""

from fedtiny.config import Config
from fedtiny.config.flat import flat


def unused_settings(*configs: Config) -> list[str]:
    """What was set and changes nothing, each reason in a line; every line once.

    What a config leaves to be chosen is not judged.

    >>> unused_settings(Config(simulator="gpu", workers=4))
    ['without effect: --workers (the GPU simulator has no processes to share work with)']
    """
    return list(dict.fromkeys(line for config in configs for line in _lines(config)))


def _lines(config: Config) -> list[str]:
    gpu = config.simulator == "gpu"
    reasons = {
        "workers": (gpu, "the GPU simulator has no processes to share work with"),
        "device.": (gpu or config.device_backend == "torch", "the devices are not native"),
        "gpu.": (config.simulator == "reference", "the devices are not played on a GPU"),
    }
    usual = flat(Config(workers=1))
    changed = [name for name, value in flat(config).items() if value != usual.get(name)]
    found = []
    for start, (in_vain, why) in reasons.items():
        flags = [f"--{name.replace('_', '-')}" for name in changed if name.startswith(start)]
        if in_vain and flags:
            found.append(f"without effect: {', '.join(flags)} ({why})")
    return found
