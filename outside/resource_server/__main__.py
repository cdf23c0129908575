"""`python -m outside.resource_server`: a gateway that accepts access tokens of oidc-provider (npm).

Tokens are JWT of two kinds of keys, opaque, or bound to a key (DPoP); a client of the MCP SDK finds the issuer by
itself. Ends with 0 if all went well, with 1 if something failed, with 2 if nothing could be installed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from anyio import to_thread
from bench.gateway.contenders import ECHO, free_port
from mcp.client import Client
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from tests.support.issuer import ec_key, prove
from tests.support.resources import STAMP, challenges

from outside.install import ROOT, CannotInstall, find_node, node_packages
from outside.say import aligned, complain, markdown, say, write_between

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

    from outside.install import Node

_HEAD = ("what", "result")
_WIDTHS = (78, 6)
_SCRIPT = Path(__file__).with_name("issuer.mjs")
_KEY = ec_key("client")
_START_S = 60
_EVERYTHING = "indus:list indus:call"


class Trial:
    """An issuer and two gateways: one reads JWTs, one introspects."""

    def __init__(self, issuer: str, client: httpx2.AsyncClient, start: Callable[[str], Awaitable[None]]) -> None:
        self.issuer = issuer
        self.restart_issuer = start
        self.jwt = ""
        """The URL of the gateway that reads JWTs."""
        self.opaque = ""
        """The URL of the gateway that introspects."""
        self._client = client

    async def mint(
        self, resource: str, scope: str = _EVERYTHING, client: str = "alice", *, is_bound: bool = False
    ) -> str:
        """Get a token by client credentials (RFC 6749 §4.4, RFC 8707)."""
        form = {"grant_type": "client_credentials", "resource": resource, "scope": scope}
        proof = {"dpop": prove(_KEY, "", "POST", f"{self.issuer}/token", ath=None)} if is_bound else {}
        auth = (client, f"secret-of-{client}")
        response = await self._client.post(f"{self.issuer}/token", data=form, auth=auth, headers=proof)
        assert response.status_code == 200, response.text
        return response.json()["access_token"]

    async def revoke(self, token: str, client: str = "alice") -> None:
        """Revoke a token (RFC 7009)."""
        auth = (client, f"secret-of-{client}")
        done = await self._client.post(f"{self.issuer}/token/revocation", data={"token": token}, auth=auth)
        assert done.status_code == 200, done.text

    async def send(
        self, url: str, token: str, method: str = "tools/list", proof: str | None = None, **params: Any
    ) -> httpx2.Response:
        """Send a request to a gateway."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": STAMP}}
        headers = {
            "accept": "application/json, text/event-stream",
            "authorization": f"{'Bearer' if proof is None else 'DPoP'} {token}",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": method,
            **({"mcp-name": params["name"]} if "name" in params else {}),
            **({} if proof is None else {"dpop": proof}),
        }
        return await self._client.post(url, json=body, headers=headers)

    async def call(self, url: str, token: str, server: str = "echo", proof: str | None = None) -> httpx2.Response:
        """Call a tool of a server."""
        return await self.send(url, token, "tools/call", proof, name=f"{server}__echo", arguments={"text": "hello"})


# -- what is tried --------------------------------------------------------------------------------


async def accept_jwt(trial: Trial) -> None:
    """A JWT (ES256) for this gateway lists and calls."""
    token = await trial.mint(trial.jwt)
    assert (await trial.send(trial.jwt, token)).status_code == 200
    answer = await trial.call(trial.jwt, token)
    assert answer.json()["result"]["content"][0]["text"] == "hello", answer.text


async def accept_rsa(trial: Trial) -> None:
    """A JWT of another kind of key (RS256) is accepted."""
    assert (await trial.send(trial.jwt, await trial.mint(f"{trial.jwt}/rsa"))).status_code == 200


async def refuse_other_resource(trial: Trial) -> None:
    """A JWT for another resource is refused."""
    refused = await trial.send(trial.jwt, await trial.mint("https://other.example/mcp"))
    assert refused.status_code == 401
    assert "(aud)" in challenges(refused)


async def refuse_scope(trial: Trial) -> None:
    """A JWT with the scope of one server calls that one alone, and learns which scope is missing."""
    narrow = await trial.mint(trial.jwt, "indus:call:echo")
    assert (await trial.call(trial.jwt, narrow)).status_code == 200
    refused = await trial.call(trial.jwt, narrow, "other")
    assert refused.status_code == 403
    assert 'scope="indus:call:other"' in challenges(refused)


async def accept_bound(trial: Trial) -> None:
    """A JWT bound to a key (DPoP) needs a proof, each once, and is no bearer token."""
    token = await trial.mint(trial.jwt, is_bound=True)
    proof = prove(_KEY, token, "POST", trial.jwt)
    assert (await trial.call(trial.jwt, token, proof=proof)).status_code == 200
    assert (await trial.call(trial.jwt, token, proof=proof)).status_code == 401
    assert (await trial.call(trial.jwt, token)).status_code == 401


async def introspect(trial: Trial) -> None:
    """An opaque token is introspected; one of another resource and a revoked one are refused."""
    token, revoked = [await trial.mint(f"{trial.opaque}/opaque") for _ in range(2)]
    assert "." not in token
    answer = await trial.call(trial.opaque, token)
    assert answer.status_code == 200, answer.text
    await trial.revoke(revoked)
    assert (await trial.call(trial.opaque, revoked)).status_code == 401
    assert (await trial.call(trial.opaque, await trial.mint("https://other.example/mcp/opaque"))).status_code == 401
    assert (await trial.call(trial.jwt, token)).status_code == 401


async def accept_sdk_client(trial: Trial) -> None:
    """A client of the MCP SDK finds the issuer by our challenge and metadata, gets a token, lists and calls."""
    provider = ClientCredentialsOAuthProvider(
        trial.jwt, _Storage(), "bob", "secret-of-bob", scope=_EVERYTHING, issuer=trial.issuer
    )
    async with httpx2.AsyncClient(auth=provider, timeout=30) as http:
        async with Client(streamable_http_client(trial.jwt, http_client=http)) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert "echo__echo" in names, names
            result: Any = await client.call_tool("echo__echo", {"text": "hello"})
            assert result.content[0].text == "hello"


async def follow_rotation(trial: Trial) -> None:
    """After the issuer has other keys, its new tokens are accepted and the old ones refused."""
    old = await trial.mint(trial.jwt)
    assert (await trial.send(trial.jwt, old)).status_code == 200
    await trial.restart_issuer("second")
    new = await trial.mint(trial.jwt)
    status = 0
    with anyio.move_on_after(_START_S):  # the gateway asks for unknown keys every half a minute at most
        while status != 200:
            status = (await trial.send(trial.jwt, new)).status_code
            await anyio.sleep(0.5)
    assert status == 200
    assert (await trial.send(trial.jwt, old)).status_code == 401


TRIALS = (
    accept_jwt,
    accept_rsa,
    refuse_other_resource,
    refuse_scope,
    accept_bound,
    introspect,
    accept_sdk_client,
    follow_rotation,
)


class _Storage:
    """Tokens of the SDK's client, in memory."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        del client_info


# -- programs -------------------------------------------------------------------------------------


@asynccontextmanager
async def _gateway(issuer: str, folder: str, *flags: str) -> AsyncGenerator[str]:
    """Run `indus serve --http --auth` before two servers, and give its URL."""
    config = Path(folder, "servers.json")
    echo = f'{{"command": "{sys.executable}", "args": ["-I", "-S", "{ECHO}", "1"]}}'
    await to_thread.run_sync(config.write_text, f'{{"mcpServers": {{"echo": {echo}, "other": {echo}}}}}', "utf-8")
    words = ["serve", "--http", "127.0.0.1:0", "--auth", issuer, "--profile", "none", "--mcp", str(config), *flags]
    env = {**os.environ, "HOME": folder, "INDUS_SERVE_CLIENT_SECRET": "secret-of-gateway"}
    command = [sys.executable, "-m", "induscode", *words]
    async with await anyio.open_process(command, cwd=folder, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            assert process.stderr is not None
            said = ""
            with anyio.fail_after(_START_S):
                while "native tools" not in said:
                    said += (await process.stderr.receive()).decode()
            match = re.search(r"serving at (\S+)", said)
            assert match is not None, said
            yield match[1]
        finally:
            process.send_signal(signal.SIGTERM)


async def _start_issuer(
    stack: AsyncExitStack, node: Node, packages: Path, port: int, key_name: str
) -> anyio.abc.Process:
    environment = {**os.environ, "NODE_PACKAGES": str(packages.parent)}
    command = [str(node.path), str(_SCRIPT), str(port), key_name]
    opening = await anyio.open_process(command, env=environment, stderr=subprocess.DEVNULL)
    process = await stack.enter_async_context(opening)
    stack.callback(lambda: process.returncode is None and process.terminate())
    assert process.stdout is not None
    with anyio.fail_after(_START_S):
        while b"ready" not in await process.stdout.receive():
            pass
    return process


@asynccontextmanager
async def _open_trial(node: Node, packages: Path) -> AsyncGenerator[Trial]:
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        running = [await _start_issuer(stack, node, packages, port, "first")]

        async def restart(key_name: str) -> None:
            running[0].terminate()
            await running[0].wait()
            running[0] = await _start_issuer(stack, node, packages, port, key_name)

        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=30))
        trial = Trial(issuer, client, restart)
        gateways: list[AbstractAsyncContextManager[str]] = []
        for flags in ((), ("--introspect", "gateway")):
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            gateways.append(_gateway(issuer, folder, *flags))
        trial.jwt = await stack.enter_async_context(gateways[0])
        trial.opaque = await stack.enter_async_context(gateways[1])
        yield trial


async def _run(rows: list[tuple[str, str]]) -> None:
    node = find_node()
    if node is None:
        raise CannotInstall("node is missing")
    packages = await to_thread.run_sync(node_packages, node, "resource_server")
    say(aligned(_HEAD, _WIDTHS))
    async with _open_trial(node, packages) as trial:
        for run in TRIALS:
            problem = "ok"
            try:
                await run(trial)
            except Exception as exc:  # noqa: BLE001 — boundary: the other trials are run too
                problem = f"FAILED: {type(exc).__name__}: {exc}"[:200]
            rows.append(((run.__doc__ or "").rstrip("."), problem))
            say(aligned(rows[-1], _WIDTHS))


def main() -> int:
    """Run all trials and return the exit code."""
    rows: list[tuple[str, str]] = []
    try:
        anyio.run(_run, rows)
    except CannotInstall as exc:
        complain(f"outside.resource_server: {exc}")
        return 2
    write_between(ROOT / "docs/evidence/conformance.md", "resource server", markdown(_HEAD, rows))
    return 0 if all(result == "ok" for _, result in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
