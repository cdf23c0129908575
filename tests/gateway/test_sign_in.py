"""A client of `indus serve` signs in to a server behind it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from subprocess import DEVNULL, PIPE, Popen
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import to_thread
from tests.sign_in.test_servers import configure, sign_in
from tests.support.forked import start_command
from tests.support.protected_server import follow_redirect, protected_site, sign_in_by_http
from tests.support.scripts import command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

pytestmark = pytest.mark.process

PERSON_CAN_BROWSE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


class JsonClient:
    """A client that speaks lines of JSON, and whose person does in a browser what the gateway asks for."""

    def __init__(self, process: Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._writer, self._reader = process.stdin, process.stdout
        self._number = 0
        self.pages: list[dict[str, Any]] = []
        self.allow = True
        self.is_changed = False

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._writer.flush()

    async def receive(self) -> dict[str, Any]:
        return json.loads(await to_thread.run_sync(self._reader.readline, abandon_on_cancel=True))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request, and return its result; requests of the gateway are answered meanwhile."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        while True:
            message = await self.receive()
            if message.get("method") == "elicitation/create":
                self.pages.append(message["params"])
                action = "accept" if self.allow else "decline"
                self.send({"id": message["id"], "result": {"action": action}})
                if self.allow:
                    await follow_redirect(await sign_in_by_http(message["params"]["url"]))
            elif message.get("method") == "notifications/tools/list_changed":
                self.is_changed = True
            elif message.get("id") == self._number and "method" not in message:
                return message["result"]

    async def wait_for_tool(self, name: str) -> None:
        """Wait until a tool is listed; each change of the list is announced."""
        with anyio.fail_after(40):
            while name not in await self.list_names():
                while not self.is_changed:
                    message = await self.receive()
                    self.is_changed = message.get("method") == "notifications/tools/list_changed"
                self.is_changed = False

    async def list_names(self) -> set[str]:
        return {tool["name"] for tool in (await self.ask("tools/list"))["tools"]}

    async def call(self, name: str) -> tuple[str, bool]:
        result = await self.ask("tools/call", name=name, arguments={})
        return result["content"][0]["text"], result.get("isError", False)


@asynccontextmanager
async def gateway(url: str, folder: Path, capabilities: dict[str, Any]) -> AsyncGenerator[JsonClient]:
    config = folder / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"demo": {"type": "http", "url": url}}}), "utf-8")
    line = [command("indus"), "serve", "--mcp", str(config)]
    with start_command(line, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=folder) as process:
        client = JsonClient(process)
        try:
            info = {"name": "test", "version": "1"}
            await client.ask("initialize", protocolVersion="2025-11-25", capabilities=capabilities, clientInfo=info)
            client.send({"method": "notifications/initialized"})
            yield client
        finally:
            process.terminate()
            await to_thread.run_sync(process.wait)


async def test_a_client_signs_in_by_a_page_and_the_tools_appear(tmp_path: Path) -> None:
    async with protected_site() as site, gateway(site.server.url, tmp_path, PERSON_CAN_BROWSE) as client:
        await client.wait_for_tool("demo__sign_in")
        client.allow = False
        text, is_error = await client.call("demo__sign_in")
        assert is_error
        assert "the sign-in was declined" in text
        client.allow = True
        assert await client.call("demo__sign_in") == ("Signed in to 'demo'; its tools are listed now.", False)
        assert client.pages[-1]["mode"] == "url"
        assert client.pages[-1]["message"] == "Sign in to the server 'demo'."
        await client.wait_for_tool("demo__whoami")
        assert "demo__sign_in" not in await client.list_names()
        assert await client.call("demo__whoami") == ("ada@example.org", False)
        # The sign-in ends at the issuer: the call itself asks for the next one, and goes on.
        for token in site.issuer.tokens:
            token.is_revoked = True
        asked = len(client.pages)
        assert await client.call("demo__whoami") == ("ada@example.org", False)
        assert len(client.pages) == asked + 1


async def test_a_client_without_pages_gets_the_command_and_notices_the_sign_in(tmp_path: Path) -> None:
    async with protected_site() as site, gateway(site.server.url, tmp_path, {}) as client:
        await client.wait_for_tool("demo__sign_in")
        text, is_error = await client.call("demo__sign_in")
        assert is_error
        command = f"indus mcp login --mcp {tmp_path / 'servers.json'} demo"
        assert text == f"server 'demo' needs a sign-in: {command}"
        await sign_in(configure(site.server.url))
        await client.wait_for_tool("demo__whoami")
        assert await client.call("demo__whoami") == ("ada@example.org", False)
