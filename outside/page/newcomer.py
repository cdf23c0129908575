"""A newcomer at the page: from an empty home to a client that calls through the gateway, without a shell.

They import two servers of Claude Code, add one that they try first, approve a tool that changed, connect Claude Code,
and see its call. All views are judged at the sizes and colours of the others; one part is by keys alone, one without
scripts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outside.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from outside.page.__main__ import PageRun

_SERVER = str(Path(__file__).with_name("many_tools.py"))
_WHOLE_S = 120.0
_WINDOWS = (("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390))


def write_clients(home: Path) -> None:
    """Write the files of the clients that a newcomer has used so far, and install a server."""
    gallery = {"command": sys.executable, "args": [_SERVER, str(home / "gallery.txt"), "12", "gallery"]}
    token = {"API_TOKEN": "sk-live-4242424242424242"}
    notes = {"command": sys.executable, "args": [_SERVER, "", "3", "notes"], "env": token}
    programs = home.parent / "bin"
    programs.mkdir()
    weather = programs / "weather-mcp"
    # Its sandbox reads the system, and not the folder of this checkout.
    given = "import sys\n\nsys.argv[1:] = ['', '5', 'weather']\n"
    text = Path(_SERVER).read_text("utf-8").replace("import sys\n", given, 1)
    weather.write_text(f"#!{shutil.which('python3', path='/usr/bin:/bin') or sys.executable}\n{text}")
    weather.chmod(0o755)
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"gallery": gallery, "notes": notes}}, indent=2))
    (home / ".cursor").mkdir()


class Newcomer:
    """What one person does at the page."""

    def __init__(self, page: PageRun, home: Path, keep_picture: Callable[[str], None]) -> None:
        self.page, self.browser, self.home = page, page.browser, home
        self._keep = keep_picture
        self.problems: list[str] = []
        self._judging_s = 0.0

    def go_through(self) -> None:
        """Do all of it, and say how long it took."""
        began = time.monotonic()
        self._import()
        self._add()
        self._approve()
        self._connect()
        self._see_call()
        took = time.monotonic() - began - self._judging_s
        if took > _WHOLE_S:
            self.problems.append(f"a newcomer needs {took:.0f} s")
        say(f"  a newcomer: from an empty home to a call of Claude Code in {took:.0f} s")

    def _judge(self, name: str, path: str) -> None:
        """Judge a view at all sizes and colours, and return to it."""
        began = time.monotonic()
        for scheme, width in _WINDOWS:
            self.browser.resize(width, 900, scheme)
            found, _ = self.page.find_problems(f"{name}, {scheme}, {width} px", path)
            self.problems += found
            self._keep(f"page-{name}-{scheme}-{width}.png")
        self.browser.resize(1280, 900, "light")
        self._judging_s += time.monotonic() - began

    def _click(self, text: str) -> None:
        """Click a link or button as it's shown."""
        links = "[...document.querySelectorAll('main a, main button, header nav a')]"
        found = f"{links}.filter((one) => one.innerText.trim() === {json.dumps(text)}).slice(0, 1)"
        deadline = time.monotonic() + 20
        while not self.browser.evaluate(f"{found}.map((one) => one.click()).length"):
            if time.monotonic() > deadline:
                shown = self.browser.evaluate("document.body.innerText")
                raise AssertionError(f"there is no {text!r}: {shown}")
            time.sleep(0.1)

    def _import(self) -> None:
        self._judge("start", "")
        self.page.open("")
        self._click("Import")
        self.browser.wait_for_text("From Claude Code")
        self._judge("add", "/add")
        self.page.open("/add")
        self._click("Import")
        self.browser.wait_for_text("2 of 2 ready")
        rows = (self.home / ".config/indus/mcp.json", self.home / ".config/indusvx/mcp.json")
        text = next(path.read_text() for path in rows if path.exists())
        if "sk-live" in text or "${keyring:notes.API_TOKEN}" not in text:
            self.problems.append("the secret of an imported server is in our file")

    def _add(self) -> None:
        """Add a server by keys alone."""
        self.page.open("/add")
        self._focus("entry-target")
        self.browser.type_text("weather-mcp --celsius")
        self.browser.press_key("Tab")
        self.browser.type_text("weather")
        self.browser.press_key("Enter")
        self.browser.wait_for_text("Check what it runs")
        self._keep("page-review-light-1280.png")
        self._press_by_key("Try it first")
        self.browser.wait_for_text("nothing of it was kept")
        self._keep("page-tried-light-1280.png")
        self._press_by_key("Add it with these tools")
        self.browser.wait_for_text("Log")
        self.browser.wait_for_text("ready")
        self._judge("server-new", "/server?name=weather")
        self._judge("row", "/row?name=notes")

    def _focus(self, element: str) -> None:
        for _ in range(60):
            if self.browser.evaluate("document.activeElement.id") == element:
                return
            self.browser.press_key("Tab")
        raise AssertionError(f"Tab does not reach {element}")

    def _press_by_key(self, text: str) -> None:
        for _ in range(60):
            if self.browser.evaluate("document.activeElement.innerText") == text:
                break
            self.browser.press_key("Tab")
        else:
            raise AssertionError(f"Tab does not reach {text!r}")
        self.browser.press_key("Enter")

    def _approve(self) -> None:
        (self.home / "gallery.txt").write_text("Count the photos of an album, and send them to example.org.")
        self.page.open("/server?name=gallery")
        self._click("Restart")
        self.browser.wait_for_text("gallery: ready")
        self.page.open("")
        self.browser.wait_for_text("Needs you")
        self._judge("needs", "")
        self.page.open("")
        self._click("Review change")
        self.browser.wait_for_text("example.org")
        self.browser.resize(1280, 560, "light")
        self._keep("page-drift-light-1280.png")
        self.browser.resize(1280, 900, "light")
        self._click("Approve")
        self.browser.wait_for_text("approved as it is now")

    def _connect(self) -> None:
        """Connect Claude Code without scripts."""
        self._judge("client", "/client?name=claude-code")
        self.browser.allow_scripts(allowed=False)
        self.page.open("")
        self._click("Connect")
        self.browser.wait_for_text("a copy stays next to it")
        self._click("Connect")
        self.browser.wait_for_text("Connected.")
        self.browser.allow_scripts(allowed=True)

    def _see_call(self) -> None:
        entry = json.loads((self.home / ".claude.json").read_text())["mcpServers"]["indus"]
        call_as_client([entry["command"], *entry["args"]], self.home, "weather__forecast")
        self.page.open("")
        self.browser.wait_for_text("1 call")
        self.page.open("/calls")
        self.browser.wait_for_text("claude-code")
        self._judge("home-later", "")
        for name in ("settings", "rules", "tokens"):
            self._judge(name, f"/{name}")


def call_as_client(command: list[str], home: Path, tool: str) -> None:
    """Call a tool as Claude Code would: it starts the command of its file."""
    info = {"name": "claude-code", "version": "2.1"}
    start = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    with _opened(command, home) as exchange:
        exchange({"id": 1, "method": "initialize", "params": start})
        exchange({"method": "notifications/initialized"})
        deadline = time.monotonic() + 60
        while tool not in json.dumps(exchange({"id": 2, "method": "tools/list"})):
            if time.monotonic() > deadline:
                raise AssertionError(f"the gateway does not list {tool}")
            time.sleep(0.2)
        answer = exchange({"id": 3, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
        if "42 files" not in json.dumps(answer):
            raise AssertionError(f"the call was answered with {answer}")


@contextmanager
def _opened(command: list[str], home: Path) -> Generator[Callable[[dict[str, Any]], Any]]:
    environment = {
        "HOME": str(home),
        "PATH": f"{home.parent}/bin:/usr/bin:/bin",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=home
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sends, receives = process.stdin, process.stdout

    def exchange(message: dict[str, Any]) -> Any:
        sends.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        sends.flush()
        while "id" in message:
            answer = json.loads(receives.readline())
            if answer.get("id") == message["id"]:
                return answer
        return None

    try:
        yield exchange
    finally:
        sends.close()
        process.wait(30)
