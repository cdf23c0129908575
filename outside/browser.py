"""A person at a headless Chromium, driven by the DevTools protocol over a pipe.

https://chromedevtools.github.io/devtools-protocol/ (`--remote-debugging-pipe`: messages end with a zero byte)
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_LAUNCH = """
import os, sys
ends = [os.dup(int(end)) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
    os.set_inheritable(number, True)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""The browser reads descriptor 3 and writes 4. Not every shell can renumber a descriptor above 9."""
_ANSWER_S = 60.0
_PAUSE_S = 0.1
_QUIET_STEPS = 10
_STEP = """
(() => {
  const login = document.querySelector('input[name=login]');
  if (login) {
    login.value = 'ada@example.org';
    document.querySelector('input[name=password]').value = 'x';
  }
  const button = document.querySelector('#allow, button[type=submit], input[type=submit], form button');
  if (button) { button.click(); return 'clicked'; }
  return 'nothing';
})()
"""


class BrowserFailed(Exception):
    """The browser did not do what a person would."""


class Chromium:
    """One browser with one page."""

    def __init__(self, process: subprocess.Popen[bytes], writer: int, reader: int) -> None:
        self._process = process
        self._writer = writer
        self._reader = reader
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        """What the browser has reported by itself."""
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        self._send("Page.enable")

    def open(self, url: str) -> None:
        """Open a page, and wait until it is complete.

        Raises:
            BrowserFailed: It is not, within a minute.
        """
        self._send("Page.navigate", {"url": url})
        deadline = time.monotonic() + _ANSWER_S
        wanted = url.partition("?key=")[0]
        while time.monotonic() < deadline:
            address = str(self.evaluate("location.href"))
            if address.startswith(wanted) and self.evaluate("document.readyState") == "complete":
                return
            time.sleep(_PAUSE_S / 4)
        raise BrowserFailed(f"the browser does not come to {url}")

    def watch(self) -> None:
        """Have requests, messages of the console and errors reported in `events`."""
        for domain in ("Network", "Log", "Runtime"):
            self._send(f"{domain}.enable")

    def resize(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the window, and the colour scheme that the person prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._send("Emulation.setEmulatedMedia", {"features": features})

    def allow_scripts(self, *, allowed: bool) -> None:
        """Allow or forbid the scripts of pages."""
        self._send("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def press_key(self, key: str) -> None:
        """Press `Tab` or `Enter`."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        down = {"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code, **text}
        self._send("Input.dispatchKeyEvent", down)
        self._send("Input.dispatchKeyEvent", {**down, "type": "keyUp"})

    def type_text(self, text: str) -> None:
        """Type a text into what has the focus."""
        self._send("Input.insertText", {"text": text})

    def take_picture(self) -> bytes:
        """Take a picture of what is shown, as PNG."""
        return base64.b64decode(self._send("Page.captureScreenshot", {"format": "png"})["data"])

    def sign_in(self, url: str, end: str) -> str:
        """Open a page, do what each page asks for, and return the address that begins with `end`."""
        self._send("Page.navigate", {"url": url})
        deadline, seen, address = time.monotonic() + _ANSWER_S, "", url
        while time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            history = self._send("Page.getNavigationHistory")
            if history:  # not while a page is being replaced
                address = history["entries"][history["currentIndex"]]["url"]
            if address.startswith(end):
                return address
            ready = self.evaluate("document.readyState") == "complete"
            body = self.evaluate("document.documentElement.innerHTML") if ready else None
            if body and body != seen and self.evaluate(_STEP) == "clicked":
                seen = body
        raise BrowserFailed(f"the browser stayed at {address}")

    def approve_device(self, url: str) -> None:
        """Open the page of a device code, and do what each page asks for until one asks for nothing."""
        self._send("Page.navigate", {"url": url})
        deadline, quiet = time.monotonic() + _ANSWER_S, 0
        while quiet < _QUIET_STEPS and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            if self.evaluate("document.readyState") == "complete":
                quiet = 0 if self.evaluate(_STEP) == "clicked" else quiet + 1

    def wait_for_text(self, text: str) -> None:
        """Wait until the page shows a text.

        Raises:
            BrowserFailed: It shows another.
        """
        deadline = time.monotonic() + _ANSWER_S
        while text not in (shown := str(self.evaluate("document.body && document.body.innerText"))):
            if time.monotonic() > deadline:
                raise BrowserFailed(f"the page in the browser says: {shown!r}")
            time.sleep(_PAUSE_S)

    def evaluate(self, script: str) -> Any:
        """Run a script in the page, and return its value."""
        # Any: the value of a script.
        answer = self._send("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        return answer.get("result", {}).get("value")

    def _send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            line, zero, rest = self._rest.partition(b"\0")
            if not zero:
                if select.select([self._reader], [], [], 1)[0]:
                    self._rest += os.read(self._reader, 1 << 16)
                continue
            self._rest = rest
            answer = json.loads(line)
            if "method" in answer:
                self.events.append(answer)
            if answer.get("id") == self._number:
                if "error" in answer:
                    # A page that is just being replaced has no context.
                    return {}
                return answer["result"]
        raise BrowserFailed(f"no answer to {method}")


def find_chromium() -> str | None:
    """Find the browser of this machine (Debian: `apt install chromium`)."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


@contextmanager
def opened_chromium(program: str) -> Generator[Chromium]:
    """Start a browser with a profile of its own, and end it when the block is left."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(to_browser), str(from_browser), program),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_browser, from_browser),
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Chromium(process, from_us, to_us)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(from_us)
            os.close(to_us)
