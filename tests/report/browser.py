"""Headless Chromium by its DevTools protocol over a pipe; no driver is needed."""

import base64
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update"),
)


class Browser:
    """One page in one browser; remembers what the page said and what it asked for."""

    def __init__(self, process, commands, events):
        self.process, self.commands, self.events = process, commands, events
        self.number, self.session, self.heard = 0, None, []

    def call(self, method, **parameters):
        """Ask and wait for the answer; what happens meanwhile is kept in `heard`."""
        self.number += 1
        order = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            order["sessionId"] = self.session
        self.commands.write(json.dumps(order).encode() + b"\0")
        self.commands.flush()
        while True:
            message = self._next()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.heard.append(message)

    def _next(self):
        parts = []
        while (byte := self.events.read(1)) != b"\0":
            assert byte, "the browser is gone"
            parts.append(byte)
        return json.loads(b"".join(parts))

    def open(self, path, width, dark=False, height=900):
        """Open a file at a width of the screen and wait until all of it is there."""
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.call("Emulation.setEmulatedMedia", features=features)
        self.heard.clear()
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.heard):
            self.heard.append(self._next())

    def value(self, script, wait=False):
        """What a script gives, as plain data; a promise may be waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=wait
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def of(self, method):
        """What was heard of one kind."""
        return [event["params"] for event in self.heard if event.get("method") == method]

    def requests(self):
        """Every address that the page asked for."""
        return [event["request"]["url"] for event in self.of("Network.requestWillBeSent")]

    def complaints(self):
        """Everything that the console holds."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for kind in kinds for event in self.of(kind)]

    def screenshot(self, path, height=None):
        """The whole page, below the fold too, or its top."""
        width = self.value("document.documentElement.clientWidth")
        top = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        clip = {"clip": top} if height else {}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, **clip)
        Path(path).write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(profile):
    """A browser with a fresh profile in the folder given."""
    to_child, commands = os.pipe()
    events, from_child = os.pipe()
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "chromium", BINARY, *FLAGS,
         f"--user-data-dir={profile}"],
        pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_child)
    os.close(from_child)
    with process, os.fdopen(commands, "wb") as write, os.fdopen(events, "rb") as read:
        page = Browser(process, write, read)
        try:
            yield _attached(page)
        finally:
            process.kill()


def _attached(page):
    target = page.call("Target.createTarget", url="about:blank")["targetId"]
    session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    page.session = session
    for domain in ("Page", "Runtime", "Network", "Log"):
        page.call(f"{domain}.enable")
    return page
