"""`indus serve --http`: whom it lets in, what it says about itself, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from tests.commands.helpers import PYTHON, configured, row, user_file
from tests.commands.serving import hello, serving, wait_for
from tests.support.scripts import run
from tests.support.servers import HONEST_TOOLS, SERVERS, STEADY, diary
from tests.support.waiting import LIMIT_S, is_alive, until

from indusagi.core.text import clean_text, iter_strings
from indusagi.interop import StreamableHttpServerConfig, create_server_endpoint

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.commands.serving import Gateway

pytestmark = pytest.mark.process
NONE = ["--profile", "none"]


def token_file() -> Path:
    return Path(os.environ["HOME"]) / ".local" / "state" / "indus" / "serve-token"


@contextmanager
def listening(*words: str, cwd: Path, **variables: str) -> Generator[tuple[Gateway, str]]:
    """Run a gateway behind HTTP, and give where it listens."""
    with serving("--http", "127.0.0.1:0", *words, cwd=cwd, **variables) as gateway:
        # The last line of the start: the address and the token are printed before.
        wait_for(lambda: "native tools" in gateway.said())
        found = re.search(r"serving at (\S+)", gateway.said())
        assert found is not None
        yield gateway, found[1]


def post(url: str, **headers: str) -> httpx2.Response:
    accept = {"accept": "application/json, text/event-stream", **headers}
    return httpx2.post(url, json=hello(), headers=accept, timeout=LIMIT_S)


def bearer() -> dict[str, str]:
    return {"authorization": f"Bearer {token_file().read_text(encoding='ascii').strip()}"}


def test_the_token_is_made_once_shown_once_and_asked_for_always(tmp_path: Path) -> None:
    with listening(*NONE, cwd=tmp_path) as (gateway, url):
        token = token_file().read_text(encoding="ascii").strip()
        assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
        assert gateway.said().count(token) == 1
        assert str(token_file()) in gateway.said()
        assert post(url).status_code == 401
        assert post(url, authorization="Bearer " + "0" * 64).status_code == 401
        assert post(url, **bearer()).status_code == 200
    assert gateway.process.returncode == 0
    with listening(*NONE, cwd=tmp_path) as (gateway, url):
        assert token not in gateway.said()
        assert f"token: in {token_file()}" in gateway.said()
        assert post(url, **bearer()).status_code == 200


def test_r51_c2_other_names_and_other_pages_are_turned_away_on_every_address(tmp_path: Path) -> None:
    with listening(*NONE, "--allowed-origin", "https://good.example", cwd=tmp_path) as (gateway, url):
        known = bearer()
        assert post(url, **known, host="evil.example").status_code in {403, 421}
        assert post(url, **known, origin="http://evil.example").status_code == 403
        assert post(url, **known, origin="null").status_code == 403
        assert post(url, **known, origin="https://good.example").status_code == 200
        assert "not encrypted" not in gateway.said()
    with serving(*NONE, "--http", "0.0.0.0:0", cwd=tmp_path) as gateway:
        wait_for(lambda: "serving at" in gateway.said())
        found = re.search(r"serving at http://0.0.0.0:(\d+)", gateway.said())
        assert found is not None
        everywhere = f"http://127.0.0.1:{found[1]}/mcp"
        assert post(everywhere).status_code == 401
        assert post(everywhere, **known, host="evil.example").status_code in {403, 421}
        assert post(everywhere, **known).status_code == 200
        assert "need --allowed-host NAME:PORT" in gateway.said()
        wait_for(lambda: "not encrypted: others on the network can read the token" in gateway.said())


def test_a_gateway_behind_http_loads_nothing_of_the_sdk(tmp_path: Path) -> None:
    with listening(*NONE, "--no-mcp", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1") as (gateway, url):
        assert post(url, **bearer()).status_code == 200
        lines = re.findall(r"^import time:.*\| *(\w+)", gateway.said(), re.MULTILINE)
    assert "h11" in lines
    assert {*lines} & {"mcp", "mcp_types", "pydantic", "httpx2", "starlette", "uvicorn", "jsonschema"} == set()


def test_finding_d11_there_is_room_for_256_sessions_or_as_many_as_are_said(tmp_path: Path) -> None:
    for words, room in (([], 256), (["--sessions", "2"], 2), (["--max-sessions", "3"], 3)):
        with listening(*NONE, *words, cwd=tmp_path) as (_, url):
            headers = {"accept": "application/json, text/event-stream", **bearer()}
            with httpx2.Client(headers=headers, timeout=LIMIT_S) as client:
                assert {client.post(url, json=hello()).status_code for _ in range(room)} == {200}
                client.post(url, json=hello())
                assert client.get(f"{url.removesuffix('/mcp')}/health").json()["sessions"] == room


@pytest.mark.parametrize("flag", ["--max-requests", "--max-requests-per-token"])
async def test_finding_d11_the_limits_are_flags_and_further_calls_wait(tmp_path: Path, flag: str) -> None:
    """A call takes the one place there is; the others wait, and run when it has ended."""
    configured(user_file(), {"a": row()})
    stamp: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    named = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
    named |= {"Accept": "application/json, text/event-stream"}
    with listening(*NONE, flag, "1", cwd=tmp_path) as (_, url):
        async with httpx2.AsyncClient(headers={**named, **bearer()}, timeout=LIMIT_S) as client:
            statuses: list[int] = []

            async def call(name: str, **arguments: Any) -> None:
                params = {"name": name, "arguments": arguments, "_meta": stamp}
                frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                statuses.append((await client.post(url, json=frame, headers={"Mcp-Name": name})).status_code)

            async def counts(requests: int, waiting: int) -> bool:
                health = (await client.get(f"{url.removesuffix('/mcp')}/health")).json()
                return (health["requests"], health["waiting"]) == (requests, waiting)

            async with anyio.create_task_group() as tasks:
                slow = anyio.CancelScope()

                async def hang() -> None:
                    with slow:
                        await call("a__slow", seconds=600)

                tasks.start_soon(hang)
                await until(lambda: counts(1, 0))
                tasks.start_soon(lambda: call("a__echo", text="x"))
                await until(lambda: counts(1, 1))
                assert statuses == []
                slow.cancel()
            assert statuses == [200]


def test_without_a_token_only_this_machine_is_served_and_that_is_said(tmp_path: Path) -> None:
    with listening(*NONE, "--no-token", cwd=tmp_path) as (gateway, url):
        assert post(url).status_code == 200
        assert post(url, origin="http://evil.example").status_code == 403
        assert "every program of this machine can call these tools" in gateway.said()
    assert not token_file().exists()


async def test_two_clients_see_one_deck_that_changes(tmp_path: Path) -> None:
    configured(user_file(), {"a": row()})
    with listening(*NONE, cwd=tmp_path) as (_, url):
        first = create_server_endpoint(StreamableHttpServerConfig("first", url, bearer(), limits=STEADY))
        second = create_server_endpoint(StreamableHttpServerConfig("second", url, bearer(), limits=STEADY))
        await first.open()
        await second.open()
        try:
            for client in (first, second):
                assert len(await client.list_tools()) == len(HONEST_TOOLS)
                answer = await client.invoke("a__echo", {"text": client.config.id})
                assert answer.content[0]["text"] == client.config.id  # type: ignore[index,call-overload]
            configured(user_file(), {"a": row(), "b": row()})
            for client in (first, second):
                await until(lambda client=client: len(client.known_tools or ()) > len(HONEST_TOOLS))
        finally:
            await first.close()
            await second.close()


def test_c27_the_token_of_a_client_goes_nowhere_else(tmp_path: Path) -> None:
    configured(user_file(), {"a": row()})
    with listening(*NONE, cwd=tmp_path) as (gateway, url):
        known = bearer()
        token = known["authorization"].removeprefix("Bearer ")
        with httpx2.Client(timeout=LIMIT_S) as client:
            accept = {"accept": "application/json, text/event-stream", **known}
            met = client.post(url, json=hello(), headers=accept)
            session = {**accept, "mcp-session-id": met.headers["mcp-session-id"]}
            call: dict[str, Any] = {"name": "a__env", "arguments": {}}
            asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            answer = client.post(url, json=asked, headers=session).text
        assert "PATH" in answer
        assert token not in answer
        said = gateway.said()
    assert said.count(token) == 1, "shown once, when it was made"
    ledger = run("ledger", "export", cwd=tmp_path)
    assert token not in ledger.stdout


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", *NONE, "--http", str(port), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"can't listen on 127.0.0.1:{port}" in done.stderr
    assert "(choose another port: --http PORT" in done.stderr


@pytest.mark.parametrize("damage", ["token", "directory", "home"])
def test_a_token_that_cannot_be_kept_is_not_blamed_on_the_port(tmp_path: Path, damage: str) -> None:
    folder = token_file().parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    more: dict[str, str] = {}
    if damage == "token":
        folder.mkdir(mode=0o700)
        token_file().touch(0o600)
    elif damage == "directory":
        folder.touch()
    else:
        more["XDG_STATE_HOME"] = "/proc/nonexist"
    done = run("serve", *NONE, "--http", "0", cwd=tmp_path, **more)
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first.startswith("indus: the token of clients can be neither read nor created: ")
    remedy = {"token": "remove it", "directory": "remove it", "home": "XDG_STATE_HOME"}[damage]
    assert remedy in first
    assert "listen" not in done.stderr


def test_a_wrong_token_is_told_apart_from_none(tmp_path: Path) -> None:
    with listening(*NONE, cwd=tmp_path) as (_, address):
        url = address.removesuffix("/mcp")
        for path in ("/health", "/mcp"):
            for headers, why in (({}, "a token is needed"), ({"authorization": "Bearer x"}, "the token is not valid")):
                refused = httpx2.get(f"{url}{path}", headers=headers)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert why in refused.text


def test_an_address_that_is_not_ours_is_one_line(tmp_path: Path) -> None:
    done = run("serve", *NONE, "--http", "192.0.2.1:0", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    token_file().parent.mkdir(parents=True, mode=0o700)
    token_file().write_text("0" * 64, encoding="ascii")
    token_file().chmod(0o644)
    done = run("serve", *NONE, "--http", "0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "other users may read" in done.stderr


async def test_r52_a_client_that_vanishes_in_a_call_is_forgotten(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with listening(*NONE, cwd=tmp_path) as (_, url):
        endpoint = create_server_endpoint(StreamableHttpServerConfig("one", url, bearer()))
        await endpoint.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_ask, endpoint, {"seconds": 60})
            await until(lambda: bool(diary(log, "heard tools/call")))
            tasks.cancel_scope.cancel()
        await until(lambda: bool(diary(log, "heard notifications/cancelled")))
        await endpoint.close()
        assert post(url, **bearer()).status_code == 200


async def _ask(endpoint: Any, arguments: dict[str, Any]) -> None:
    await endpoint.invoke("a__slow", arguments)


async def test_told_to_end_it_lets_calls_finish(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with listening(*NONE, cwd=tmp_path) as (gateway, url):
        endpoint = create_server_endpoint(StreamableHttpServerConfig("one", url, bearer()))
        await endpoint.open()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await endpoint.invoke("a__slow", {"seconds": 0.3}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: bool(diary(log, "heard tools/call")))
            os.kill(gateway.pid, signal.SIGTERM)
        assert not answers[0].is_error
        await endpoint.close()
        await until(lambda: gateway.process.poll() == 0)
        assert not any(is_alive(int(pid)) for pid in diary(log, "start"))


def test_standard_output_stays_empty(tmp_path: Path) -> None:
    with listening(*NONE, cwd=tmp_path) as (gateway, url):
        assert json.loads(post(url, **bearer()).text.partition("data: ")[2] or "{}") is not None
        gateway.process.terminate()
        assert gateway.process.wait(LIMIT_S) == 0
        assert gateway.process.stdout is not None
        assert gateway.process.stdout.read() == b""


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_finding_d4_over_http_nothing_that_cannot_be_seen_reaches_a_client(tmp_path: Path, mode: Any) -> None:
    hidden = {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "hidden.py")], "review": "note"}
    configured(user_file(), {"h": hidden})
    with listening(*NONE, cwd=tmp_path) as (_, url):
        http = httpx2.AsyncClient(headers=bearer())
        async with http, Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            listed = await client.list_tools()
            answer = await client.call_tool("h__paint", {"colour": "red", "size": "small"})
            refused = await client.call_tool("h__refuse", {})
    for told in (listed, answer, refused):
        seen = told.model_dump(mode="json", by_alias=True)
        assert [text for text in iter_strings(seen) if clean_text(text)[1]] == []
    assert json.loads(answer.content[3].text) == {  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        "c\U000e0041olour": "red",
        "size": "s\U000e0041mall",
    }
