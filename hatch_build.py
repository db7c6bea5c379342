"""Build hooks: the native library, and the text that a package index shows.

The library is compiled, or left out where there is no compiler.

The environment variable FEDTINY_NATIVE changes that: `required` makes a missing compiler an error,
`strict` warnings too, `none` leaves the library out.
"""

import importlib.util
import os
import platform
import re
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

COMPILE = Path("src", "fedtiny", "native", "compile.py")

CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
NEARBY = r"(?!https?:|mailto:)[^)\"]*"  # an address that holds in the repository alone
PICTURE = re.compile(rf'!\[[^]]*\]\({NEARBY}\)\n*|<img[^>]*src="{NEARBY}"[^>]*>\n*')
LINK = re.compile(rf"\[([^][]*)\]\({NEARBY}\)")


class NativeLibraryHook(BuildHookInterface):  # type: ignore[type-arg]
    """A wheel with the library is for one platform and any Python; one without is for all."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile beside the sources, so that an editable install finds the library too."""
        spec = importlib.util.spec_from_file_location("compile", Path(self.root) / COMPILE)
        assert spec is not None
        assert spec.loader is not None
        compile_module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compile_module)
        wanted = os.environ.get("FEDTINY_NATIVE", "")
        if wanted == "none":
            return
        try:
            library = compile_module.build(strict=wanted == "strict")
        except compile_module.CannotCompileError as error:
            if wanted in ("required", "strict"):
                raise
            self.app.display_warning(f"fedtiny is built without its native library: {error}")
            return
        build_data["tag"] = f"py3-none-{platform_tag()}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(f"/{library.relative_to(self.root)}")


def platform_tag() -> str:
    """The platform that the library is for; a Python for two processors still compiles for one."""
    name = sysconfig.get_platform().replace("universal2", platform.machine())
    return name.replace("-", "_").replace(".", "_")


class ReadmeHook(MetadataHookInterface):
    """The long description: the README, which has to stand alone."""

    def update(self, metadata: dict[str, Any]) -> None:
        """The version for a package index, where nothing of the repository lies beside it."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": alone(text)}


def alone(text: str) -> str:
    """Markdown without pictures of the repository; links into it become their words.

    >>> alone("![a](b.svg)\\n[the *docs*](docs/a.md), [Flower](https://flower.ai)")
    'the *docs*, [Flower](https://flower.ai)'
    """
    parts = CODE.split(text)
    parts[::2] = [LINK.sub(r"\1", PICTURE.sub("", part)) for part in parts[::2]]
    return "".join(parts)
