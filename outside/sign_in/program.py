"""`indus` in a home directory of its own, and a person who signs in: by a browser, a pasted address, another device."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import Process

    from outside.browser import Chromium

Way: TypeAlias = Literal["browser", "paste", "device"]
_PAGE = re.compile(r"https?://\S+/auth\S*\?\S+")
_DEVICE_PAGE = re.compile(r"or open (\S+)")
_LIMIT_S = 120
_INDUS = str(Path(sys.executable).parent / "indus")


class ProgramFailed(Exception):
    """A command did not do what it should."""


class Program:
    """The command, with a home directory of its own."""

    def __init__(self, home: str, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "INDUS_"))}
        null = "keyring.backends.null.Keyring"
        self._environment = {**kept, "HOME": home, "PYTHON_KEYRING_BACKEND": null, **variables}
        self.home = self._home = home

    def run(self, *arguments: str) -> str:
        """Run a command to its end, and return its output.

        Raises:
            ProgramFailed: Its exit code is not 0.
        """
        done = subprocess.run(
            [_INDUS, *arguments],
            cwd=self._home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise ProgramFailed(f"indus {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def sign_in_by(self, name: str, open_page: Callable[[str], str]) -> None:
        """Run `indus mcp login --paste` with a function that opens the page and returns where its browser ends."""
        command = [_INDUS, "mcp", "login", name, "--paste"]
        process = subprocess.Popen(
            command,
            cwd=self._home,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        page = next((found[0] for line in process.stdout if (found := _PAGE.search(line))), None)
        said, _ = process.communicate(f"{open_page(page)}\n" if page else "", _LIMIT_S)
        if page is None or process.returncode:
            raise ProgramFailed(said)

    @asynccontextmanager
    async def serving(self, *arguments: str) -> AsyncGenerator[Process]:
        """Run `indus serve` while the block runs, and wait until it has tools."""
        command, said = [_INDUS, "serve", *arguments], bytearray()
        async with await anyio.open_process(
            command, cwd=self._home, env=self._environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
        ) as process:
            try:
                assert process.stdout is not None
                with anyio.fail_after(_LIMIT_S):
                    while b"tool from" not in said:
                        said += await process.stdout.receive()
                yield process
            finally:
                process.terminate()

    def read_state(self, name: str) -> dict[str, object]:
        """Return what `indus mcp auth` tells about a server."""
        rows = json.loads(self.run("mcp", "auth", "--json"))["servers"]
        return next(row for row in rows if row["name"] == name)

    def sign_in(self, name: str, way: Way, browser: Chromium) -> None:
        """Run `indus mcp login`, and do in a browser what it asks for.

        Raises:
            ProgramFailed: It did not sign in.
        """
        command = [_INDUS, "mcp", "login", name, *([] if way == "browser" else [f"--{way}"])]
        process = subprocess.Popen(
            command,
            cwd=self._home,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line)
                page = (_DEVICE_PAGE if way == "device" else _PAGE).search(line)
                if page is None or len([old for old in lines if old == line]) > 1:
                    continue
                if way == "device":
                    browser.approve_device(page[1])
                elif way == "browser":
                    browser.sign_in(page[0], _find_redirect(page[0]))
                    browser.wait_for_text("You may close this page")
                else:
                    process.stdin.write(browser.sign_in(page[0], _find_redirect(page[0])) + "\n")
                    process.stdin.flush()
            if process.wait(_LIMIT_S):
                raise ProgramFailed("".join(lines))
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def _find_redirect(url: str) -> str:
    return parse_qs(urlsplit(url).query)["redirect_uri"][0]
