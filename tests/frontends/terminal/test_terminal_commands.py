"""Command lines of a session, as they are documented."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import says
from tests.support.scripts import run
from tests.support.servers import honest
from tests.support.terminal import TerminalSetup, open_setup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


def list_tools(setup: TerminalSetup) -> set[str]:
    """List the tools that the model was shown."""
    return {tool["function"]["name"] for tool in setup.server.requests[-1].get("tools", ())}


@pytest.mark.parametrize(
    ("words", "servers", "absent"),
    [
        (("--mcp", "."), ("fs", "github"), ()),
        (("--mcp", "./mcp.json"), ("fs", "github"), ()),
        (("--mcp", "./fs.json,./github.json"), ("fs", "github"), ()),
        (("--tools", "read,bash", "--mcp", "./mcp.json"), ("fs", "github"), ("write", "grep")),
    ],
    ids=["directory", "file", "files", "tools"],
)
def test_servers_named_on_the_command_line_are_mounted_into_the_session(
    setup: TerminalSetup, words: tuple[str, ...], servers: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    fs, github = honest(id="fs"), honest(id="github")
    if "./fs.json,./github.json" in words:
        setup.write_config("fs.json", fs)
        setup.write_config("github.json", github)
    else:
        setup.write_config(".mcp.json" if "." in words else "mcp.json", fs, github)
    if "." in words:  # what a project configures needs consent
        assert run("mcp", "trust", "--yes", "fs", "github", cwd=setup.cwd).returncode == 0
    with setup.open(*words, script=(says("Mounted."),), name="indusr", model=False) as terminal:
        terminal.enter("which tools?")
        terminal.wait_for_answer("Mounted.")
        tools = list_tools(setup)
        assert {f"{server}__echo" for server in servers} <= tools
        assert {"read", "bash"} <= tools
        assert not tools.intersection(absent)
        assert terminal.leave() == 0


def test_just_talk_shows_a_model_no_tool(setup: TerminalSetup) -> None:
    setup.write_config("mcp.json", honest(id="fs"))
    setup.server.script[:] = [says("Hello.")]
    address = {"OPENAI_BASE_URL": f"{setup.server.url}/v1", "OPENAI_API_KEY": "key"}
    done = run("--no-tools", "-p", "just talk", name="indusr", cwd=setup.cwd, **address)
    assert (done.returncode, done.stdout) == (0, "Hello.\n")
    assert list_tools(setup) == set()


def test_an_unknown_command_and_an_absent_configuration_are_reported_and_do_no_harm(setup: TerminalSetup) -> None:
    with setup.open("--mcp", "./absent.json") as terminal:
        assert terminal.wait_for_end() == 2
        assert "absent.json" in terminal.text
    with setup.open(script=(says("Here."),)) as terminal:
        terminal.wait_for_prompt()
        for line in ("/nothing", "/", "/  ", "/\x0bx"):
            terminal.enter(line)
        terminal.enter("hello")
        terminal.wait_for_answer("Here.")
        assert "unknown command /nothing" in terminal.text
        terminal.enter("/exit")
        assert terminal.wait_for_end() == 0
