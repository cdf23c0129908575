"""`indus serve --http --auth`: a gateway whose clients present access tokens of an authorization server."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio import to_thread
from click.testing import CliRunner
from tests.commands.helpers import configured, row, user_file
from tests.commands.serving import hello, serving
from tests.support.forked import CONSTANTS
from tests.support.issuer import Issuer, running_issuer
from tests.support.resources import STAMP, challenges, protected
from tests.support.scripts import run
from tests.support.waiting import until

from induscode.commands.serve import command
from induscode.gateway.options import SECRET_VARIABLE


async def request(client: httpx2.AsyncClient, url: str, token: str, method: str, **params: Any) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": STAMP}}
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {token}",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
        **({"mcp-name": params["name"]} if "name" in params else {}),
    }
    return await client.post(url, json=body, headers=headers)


def text(response: httpx2.Response) -> str:
    return response.json()["result"]["content"][0]["text"]


@pytest.mark.process
async def test_principals_scopes_rules_and_the_ledger_of_a_gateway(tmp_path: Path) -> None:
    """One gateway for all of it: a start takes longer than the rest."""
    configured(user_file(), {"one": row(), "two": row()})
    rules = tmp_path / ".indusvx" / "permissions.json"
    rules.parent.mkdir()
    rules.write_text(
        json.dumps({"deny": ["one__* @bob", "ls @b*", "two__read_resource(uri=test://text) @bob"]}), encoding="utf-8"
    )
    async with running_issuer() as issuer, httpx2.AsyncClient(timeout=60, verify=False) as client:
        tokens = await _use_gateway(tmp_path, issuer, client)
    ledger = run("ledger", "export", cwd=tmp_path).stdout
    rows = [json.loads(line) for line in ledger.splitlines()]
    clients = [entry["facts"] for entry in rows if entry.get("event", entry.get("op")) == "client"]
    assert [(entry["principal"], entry["client"]) for entry in clients] == [
        ("alice", "client-1"),
        ("alice", "client-1"),
        ("bob", "client-1"),
        ("alice", "client-1"),
        ("carol", "client-1"),
        ("alice", ""),  # the named token
    ]
    assert clients[1]["scopes"] == ["indus:call:one"]
    for token in tokens:
        assert token not in ledger
    shown = run("ledger", cwd=tmp_path).stdout
    assert "client-1: indus:call:one" in " ".join(shown.split())


async def test_finding_a1_a_gateway_starts_without_its_issuer_and_finds_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, "indusagi.interop.protocol_bridge.host.auth.verifier:_RETRY_S", 0.1)
    async with running_issuer() as issuer, httpx2.AsyncClient(timeout=60) as client:
        issuer.is_broken = True
        flags = ("--http", "127.0.0.1:0", "--auth", issuer.url, "--profile", "none", "--no-mcp")
        with serving(*flags, cwd=tmp_path) as gateway:
            await until(lambda: "it is tried again" in gateway.said())
            found = re.search(r"serving at (\S+)", gateway.said())
            assert found is not None
            token = issuer.mint(found[1])
            assert (await request(client, found[1], token, "tools/list")).status_code == 503
            issuer.is_broken = False

            # A token makes the gateway ask again, a moment after its last attempt.
            statuses = [503]
            with anyio.fail_after(120):
                while statuses[-1] == 503:
                    statuses.append((await request(client, found[1], token, "tools/list")).status_code)
            assert statuses[-1] == 200
        assert gateway.process.returncode == 0
        assert "Traceback" not in gateway.said()


async def _use_gateway(folder: Path, issuer: Issuer, client: httpx2.AsyncClient) -> list[str]:
    with serving("--http", "127.0.0.1:0", "--auth", issuer.url, cwd=folder) as gateway:
        await until(lambda: "native tools" in gateway.said())
        found = re.search(r"serving at (\S+)", gateway.said())
        assert found is not None
        url = found[1]
        assert f"clients need an access token of {issuer.url}" in gateway.said()
        assert not (Path(os.environ["HOME"]) / ".local/state/indus/serve-token").exists()
        alice, bob = issuer.mint(url), issuer.mint(url, sub="bob")
        narrow = issuer.mint(url, scope="indus:call:one")
        # The token reaches neither the environment nor the messages of a server.
        seen = await request(client, url, alice, "tools/call", name="one__env", arguments={})
        assert "PATH" in text(seen)
        assert alice not in seen.text
        # A scope names one server; native tools need the wide one.
        assert (await request(client, url, narrow, "tools/call", name="one__pid", arguments={})).status_code == 200
        for name, missing in (("two__pid", "indus:call:two"), ("ls", "indus:call"), ("nothing", "indus:call")):
            refused = await request(client, url, narrow, "tools/call", name=name, arguments={})
            assert refused.status_code == 403
            assert f'scope="{missing}"' in challenges(refused)
        # A rule names a principal.
        for name, token, is_denied in (
            ("one__pid", bob, True),
            ("two__pid", bob, False),
            ("one__pid", alice, False),
            ("ls", bob, True),
            ("ls", alice, False),
        ):
            answer = await request(client, url, token, "tools/call", name=name, arguments={})
            assert ("it is denied" in text(answer)) is is_denied, (name, answer.text)
        await _list_as_principals(client, url, {"alice": alice, "bob": bob, "narrow": issuer.mint(url, scope=_NARROW)})
        with anyio.fail_after(60):
            assert (await client.get(url.replace("/mcp", "/health"))).status_code == 401
            await _use_page(
                client, url.replace("/mcp", "/ui"), bob, narrow, issuer.mint(url, sub="carol", scope="indus:list")
            )
        await _lock_out(client, url, folder, bob, alice)
        said = gateway.said()
    assert all(token not in said for token in (alice, bob, narrow))
    return [alice, bob, narrow]


async def _lock_out(client: httpx2.AsyncClient, url: str, folder: Path, bob: str, alice: str) -> None:
    """A locked principal loses its stream, although the issuer's token is still valid."""
    headers = {"authorization": f"Bearer {bob}", "accept": "application/json, text/event-stream"}
    opened = await client.post(url, json=hello(), headers=headers)
    headers["mcp-session-id"] = opened.headers["mcp-session-id"]
    async with client.stream("GET", url, headers={**headers, "accept": "text/event-stream"}) as stream:
        await to_thread.run_sync(partial(run, "tokens", "lock", "bob", cwd=folder))
        async for _ in stream.aiter_bytes():
            pass
    refused = await request(client, url, bob, "tools/list")
    assert (refused.status_code, "'bob' is locked out" in refused.text) == (401, True)
    assert (await request(client, url, alice, "tools/list")).status_code == 200
    # A named token works next to access tokens, and its name is nobody else's.
    token = (await to_thread.run_sync(partial(run, "tokens", "create", "alice", cwd=folder))).stdout.strip()
    with anyio.fail_after(60):
        while (response := await request(client, url, token, "tools/list")).status_code != 200:
            assert response.status_code == 401
        while (await request(client, url, alice, "tools/list")).status_code != 401:
            pass
    await to_thread.run_sync(partial(run, "tokens", "revoke", "alice", cwd=folder))


_NARROW = "indus:list indus:call:one"


async def _list_as_principals(client: httpx2.AsyncClient, url: str, tokens: dict[str, str]) -> None:
    """A principal sees what its scopes and rules could ever allow."""

    async def list_all(token: str, method: str, key: str, name: str) -> set[str]:
        answer = await request(client, url, token, method)
        return {row[name] for row in answer.json()["result"][key]}

    async def list_servers(
        principal: str, method: str = "tools/list", key: str = "tools", name: str = "name"
    ) -> set[str]:
        names = await list_all(tokens[principal], method, key, name)
        return {one.partition("__")[0] for one in names}

    native = {"read", "grep", "find", "webfetch", "todo_read"}
    assert await list_servers("alice") == {"one", "two", "ls", *native}
    assert await list_servers("bob") == {"two", *native}
    assert await list_servers("narrow") == {"one"}
    prompts = ("prompts/list", "prompts")
    assert await list_servers("alice", *prompts) == {"one", "two"}
    assert await list_servers("bob", *prompts) == {"two"}
    assert await list_servers("narrow", *prompts) == {"one"}
    resources = {name: await list_all(token, "resources/list", "resources", "uri") for name, token in tokens.items()}
    assert {uri for uri in resources["alice"] if "/one/" in uri} == resources["narrow"]
    missing = {uri for uri in resources["alice"] if "/two/" in uri} - resources["bob"]
    assert len(missing) == 1
    assert "text" in missing.pop()
    assert not any("/one/" in uri for uri in resources["bob"])


async def _use_page(client: httpx2.AsyncClient, url: str, admin: str, caller: str, looker: str) -> None:
    """The page asks for the scope to list, and for `indus:admin` to change something; rules name its principals too."""

    async def send(token: str, path: str = "", **form: str) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token}"}
        return await client.request("POST" if form else "GET", f"{url}{path}", headers=headers, data=form or None)

    assert (await client.get(url)).status_code == 401
    assert (await send("x" + looker)).status_code == 401
    assert (await send(caller)).status_code == 403
    seen = await send(looker)
    assert "read-only" in seen.text
    assert "set-cookie" not in seen.headers
    assert (await send(looker, "/tool?name=ls", form_key="")).status_code == 403
    assert "Restart" in (await send(admin, "/servers")).text
    assert "it is denied" in (await send(admin, "/tool?name=ls", form_key="")).text


@pytest.mark.process
async def test_a_server_is_called_in_the_name_of_each_principal_by_token_exchange(tmp_path: Path) -> None:
    async with (
        running_issuer() as issuer,
        protected(issuer) as upstream,
        httpx2.AsyncClient(timeout=60, verify=False) as client,
    ):
        secret = {"client_id": "gateway", "client_secret": "hidden"}
        auth = {"type": "token-exchange", "issuer": issuer.url, **secret}
        configured(user_file(), {"up": {"url": upstream.url, "auth": auth}})
        flags = ("--http", "127.0.0.1:0", "--auth", issuer.url, "--profile", "none")
        with serving(*flags, cwd=tmp_path) as gateway:
            await until(lambda: "native tools" in gateway.said())
            found = re.search(r"serving at (\S+)", gateway.said())
            assert found is not None
            alice, bob = issuer.mint(found[1]), issuer.mint(found[1], sub="bob")
            tokens = [alice, bob, alice]
            answers = [
                text(await request(client, found[1], token, "tools/call", name="up__who", arguments={}))
                for token in tokens
            ]
            assert answers == ["alice", "bob", "alice"], gateway.said()
            # The handshake and the list are the gateway's own; each token of a client is exchanged once.
            assert {one.principal for one in upstream.identities} == {"gateway", "alice", "bob"}
            exchanged = [form for form in issuer.forms if "subject_token" in form]
            assert [form["subject_token"] for form in exchanged] == tokens[:2]
            assert {form["resource"] for form in exchanged} == {upstream.url}
            # Without a token for the client nothing is sent in its name, nor in the gateway's.
            issuer.refuses_exchange = True
            before = len(upstream.identities)
            carol = issuer.mint(found[1], sub="carol")
            refused = await request(client, found[1], carol, "tools/call", name="up__who", arguments={})
            assert refused.json()["result"]["isError"]
            assert "invalid_target" in text(refused)
            assert len(upstream.identities) == before
        said = gateway.said()
    assert not any(token in said for token in (*tokens, carol, "hidden"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--auth", "https://a.example"], "--auth requires --http"),
        (["--http", "--audience", "x"], "--audience requires --auth"),
        (["--http", "--require-dpop"], "--require-dpop requires --auth"),
        (["--http", "--auth", "a.example"], "write an https URL"),
        (["--http", "--auth", "http://a.example"], "is not encrypted"),
        (["--http", "--auth", "https://a.example?x=1"], "without query"),
        (["--http", "--auth", "https://u:p@a.example"], "write an https URL"),
        (["--http", "--auth", "https://a.example:x"], "write an https URL"),
        (["--http", "--auth", "https://a.example", "--no-token"], "can't be used together"),
        (["--http", "--auth", "https://a.example", "--public-url", "http://b.example/mcp"], "is not encrypted"),
        (["--http", "0.0.0.0:1", "--auth", "https://a.example"], "needs --public-url"),
        (["--http", "--auth", "https://a.example", "--introspect", "me"], SECRET_VARIABLE),
        (["--http", "--auth", "https://a.example", "--max-rate-per-principal", "0"], "not in the range"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_entry_of_a_client_has_the_public_url_and_no_token() -> None:
    result = CliRunner().invoke(
        command,
        [
            *("--http", "127.0.0.1:7001", "--auth", "https://a.example", "--public-url", "https://b.example/mcp"),
            *("--audience", "api://x", "--introspect", "me", "--require-dpop", "--print-config", "claude"),
        ],
        env={SECRET_VARIABLE: "hidden"},
    )
    assert result.exit_code == 0, result.output
    assert "https://b.example/mcp" in result.stdout
    assert "INDUS_SERVE_TOKEN" not in result.output
    assert "hidden" not in result.output
    again = "--audience api://x --public-url https://b.example/mcp --introspect me --require-dpop"
    assert again in " ".join(result.output.split())
