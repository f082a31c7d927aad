"""A real browser, by the protocol of its developers' tools: pages as people have them, with what went wrong in them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

NAMES = "chromium", "chromium-browser", "google-chrome"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync --remote-debugging-port=0"
)
#: Seconds in which a page must be drawn, or an answer be there.
PATIENCE = 60.0
#: True in a report whose charts are drawn.
CHARTS = "document.documentElement?.dataset.drawn > 0"


class LeftError(AssertionError):
    """A page was left for another, or for itself anew, while it was asked something."""


class Browser:
    """One page at a time.

    Attributes
    ----------
    said : errors and warnings of the page opened last, and addresses that it asked for beside its own
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self._loop, self._socket, self._number = loop, socket, 0
        self.said: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Performance.enable", timeDomain="threadTicks")

    def open(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False, drawn: str = CHARTS) -> float:
        """Show a page; returns the seconds until an expression is true, by default that all its charts are drawn."""
        self._ask("Emulation.setEmulatedMedia", features=[_media(dark)])
        phone = width < 500
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.said, began = [], time.perf_counter()
        self._ask("Page.navigate", url=path.as_uri())
        self.wait(f"location.href === {json.dumps(path.as_uri())} && {drawn}")
        return time.perf_counter() - began

    def busy(self) -> float:
        """Seconds of processor time that the page took of its thread so far."""
        told = {each["name"]: each["value"] for each in self._ask("Performance.getMetrics")["metrics"]}
        return float(told["TaskDuration"])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        told = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true, in this page or in what it is read again as."""
        until = time.monotonic() + PATIENCE
        while not self._holds(expression):
            assert time.monotonic() < until, f"{expression} did not come true; {self.said}"
            time.sleep(0.02)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(expression))
        except LeftError:
            return False

    def click(self, selector: str) -> None:
        """Press where the first such element is."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', "
            "behavior: 'instant'}); const r = e.getBoundingClientRect(); "
            "return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def picture(self, path: Path) -> Path:
        """The whole page as PNG."""
        told = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))
        return path

    def _ask(self, method: str, **given: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(self._answer(method, given), PATIENCE))

    async def _answer(self, method: str, given: dict[str, Any]) -> Any:
        self._number += 1
        number, session = self._number, getattr(self, "_session", None)
        asked = {"id": number, "method": method, "params": given}
        await self._socket.write_message(json.dumps(asked if session is None else asked | {"sessionId": session}))
        while True:
            told = await self._socket.read_message()
            assert told is not None, "the browser ended"
            heard = json.loads(told)
            if heard.get("id") == number:
                if "navigated" in heard.get("error", {}).get("message", ""):
                    raise LeftError
                assert "error" not in heard, heard["error"]
                return heard["result"]
            self._hear(heard.get("method"), heard.get("params", {}))

    def _hear(self, event: str | None, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.said.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.said.append(str(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.said.append(str(told["entry"]))
        elif event == "Network.requestWillBeSent" and not told["request"]["url"].startswith(("file:", "data:")):
            self.said.append(told["request"]["url"])


def _media(dark: bool) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with its profile in a folder; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium; on Debian: apt-get install chromium")
    given = [found, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "about:blank"]
    log = folder / "browser.log"
    with open(log, "wb") as told:
        process = subprocess.Popen(given, stdout=subprocess.DEVNULL, stderr=told)
    loop = asyncio.new_event_loop()
    try:
        yield Browser(loop, loop.run_until_complete(_connected(_address(process, log))))
    finally:
        process.terminate()
        process.wait(PATIENCE)
        loop.close()


async def _connected(address: str) -> WebSocketClientConnection:
    return await websocket_connect(address, max_message_size=2**28)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"DevTools listening on (ws://\S+)", log.read_text(errors="replace")):
            return found.group(1)
        time.sleep(0.02)
    raise AssertionError(f"the browser does not listen: {log.read_text(errors='replace')[-2000:]}")
