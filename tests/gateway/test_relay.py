"""`indus serve --transparent SERVER`: one server, as if it had been started directly."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import configured, faulty, one_line, project_file, row, user_file
from tests.commands.serving import greeted, serving, wait_for
from tests.support.scripts import run
from tests.support.servers import HONEST_TOOLS, diary
from tests.support.waiting import LIMIT_S, is_alive

from indusagi.interop import StreamableHttpServerConfig, create_server_endpoint
from induscode.gateway.recursion import ANCESTRY, read_ancestry

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_the_names_and_the_words_are_those_of_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log), "b": row("--log", tmp_path / "other")})
    with serving("--transparent", "a", cwd=tmp_path) as gateway:
        met = gateway.greet()
        assert met["serverInfo"]["name"] == "honest"
        assert gateway.tools() == list(HONEST_TOOLS)
        assert gateway.text("echo", text="as it is") == "as it is"
        assert gateway.ask("resources/list")["result"]["resources"]
        assert len(read_ancestry(gateway.call("env")["structuredContent"])) == 1
        assert gateway.said() == ("indus: serving over standard input and output server 'a' as it is\n")
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.process.wait(LIMIT_S) == 0
    assert not any(is_alive(int(pid)) for pid in diary(log, "start"))
    assert not (tmp_path / "other").exists()


async def test_over_http_too(tmp_path: Path) -> None:
    named = configured(tmp_path / "named.json", {"a": row()})
    words = ["--transparent", "a", "--mcp", str(named), "--http", "0", "--no-token"]
    with serving(*words, cwd=tmp_path) as gateway:
        wait_for(lambda: "serving at" in gateway.said())
        found = re.search(r"serving at (\S+) server 'a' as it is", gateway.said())
        assert found is not None
        endpoint = create_server_endpoint(StreamableHttpServerConfig("front", found[1]))
        await endpoint.open()
        try:
            assert [tool.ref.name for tool in await endpoint.list_tools()] == list(HONEST_TOOLS)
            answer = await endpoint.invoke("echo", {"text": "x"})
            assert [*answer.content] == [{"type": "text", "text": "x"}]
        finally:
            await endpoint.close()


def test_trust_applies(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(project_file(tmp_path), {"theirs": row("--log", log)})
    done = run("serve", "--transparent", "theirs", cwd=tmp_path)
    one_line(done, "it isn't trusted yet", "indus mcp trust theirs", code=3)
    assert not log.exists()
    assert run("mcp", "trust", "--yes", "theirs", cwd=tmp_path).returncode == 0
    with greeted("--transparent", "theirs", cwd=tmp_path) as gateway:
        assert gateway.tools() == list(HONEST_TOOLS)


def test_a_variable_without_a_value_is_told(tmp_path: Path) -> None:
    configured(user_file(), {"open": {"command": "x", "args": ["${NOT_SET_HERE}"]}})
    one_line(run("serve", "--transparent", "open", cwd=tmp_path), "the variable NOT_SET_HERE is not set", code=3)


def test_below_the_same_server_it_refuses_to_begin_again(tmp_path: Path) -> None:
    configured(user_file(), {"a": row()})
    with greeted("--transparent", "a", cwd=tmp_path) as gateway:
        above = gateway.call("env")["structuredContent"][ANCESTRY]
    done = run("serve", "--transparent", "a", cwd=tmp_path, **{ANCESTRY: above})
    one_line(done, "was itself started as server 'a'")


def test_a_server_that_is_not_there_is_an_answer(tmp_path: Path) -> None:
    configured(user_file(), {"dies": faulty("exits")})
    with serving("--transparent", "dies", cwd=tmp_path) as gateway:
        asked = gateway.send("initialize", protocolVersion="2025-06-18", capabilities={})
        assert "error" in gateway.answer(asked)
