"""What people mistype, and the answer: one row per mistake."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import configured, row, user_file
from tests.support.model_server import Reply, model_server
from tests.support.scripts import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

AWAY = "http://127.0.0.1:9"
MODEL = ("--no-mcp", "--base-url", AWAY, "--model", "m")


@pytest.mark.parametrize(
    ("words", "code", "answer"),
    [
        (("--modle", "x"), 2, "No such option '--modle'. Did you mean '--model'?"),
        (("serv",), 2, "There is no command 'serv'. Did you mean 'serve'?"),
        (("mcp", "lst"), 2, "There is no command 'lst'. Did you mean 'list'?"),
        (("explain this",), 2, 'There is no terminal: give a prompt (indus -p "…") or a command.'),
        (("-p", "--base-url", AWAY), 2, '-p needs a prompt before --base-url: indus -p "…" --base-url.'),
        (("--model", "gpt-5", "-p", "hi"), 4, "openai:gpt-5 needs a key: indus models login openai, or set OPENAI"),
        (("-p", "hi", *MODEL), 4, "m at http://127.0.0.1:9: can't connect; check the address. Is the server running?"),
        (("mcp", "add", "github", "npx", "-y", "pkg"), 2, "Options of the server's command come after --."),
        (("mcp", "add", "x"), 2, "Say where the server is: a URL, or -- and the command that starts it."),
        (("mcp", "add", "nocmd", "--", "nosuchcommand"), 1,
         "server 'nocmd': the command 'nosuchcommand' was not found: check its spelling and PATH. Added anyway. "
         "To diagnose: indus mcp doctor nocmd"),
        (("mcp", "remove", "nosuch"), 2, "There is no server 'nosuch' (there are: one)"),
        (("call", "read", "pth=x"), 2, "there is no argument 'pth' (did you mean 'path'?). It takes: path: string"),
        (("call", "one__add", "a=1", "b=two"), 2, "'b' must be"),
        (("call", "nosuch"), 2, "there is no tool 'nosuch'"),
        (("connect", "emacs"), 2, "There is no client 'emacs' (there are: claude, "),
        (("ledger", "at", "00:00"), 2, "No run had begun by "),
        (("settings", "set", "modle.name", "x"), 2, "There is no setting 'modle.name'. Did you mean 'model.name'?"),
        (("settings", "set", "sandbox", "maybe"), 2, "sandbox takes one of auto, required, off, not maybe."),
        (("--allow", "bash(", "-p", "hi"), 1, "--allow: rule 'bash('"),
        (("calls", "stats"), 2, "There is no call 'stats'. For statistics: indus calls --by tool."),
        (("tools", "search", "--no-mcp", "send an email"), 1, "no good match for 'send an email'"),
    ],
)  # fmt: skip
def test_mistake_is_answered_with_what_to_type(words: tuple[str, ...], code: int, answer: str, tmp_path: Path) -> None:
    configured(user_file(), {"one": row()})
    done = run(*words, cwd=tmp_path)
    assert (answer in done.stderr, done.returncode) == (True, code), done.stderr
    assert done.stderr.count(answer) == 1
    assert answer.startswith("No such option") or "--help" not in done.stderr


@pytest.mark.parametrize(
    ("status", "error", "answer"),
    [
        (
            404,
            "The model 'm' does not exist",
            "m (404): The model 'm' does not exist; its server has: local-model; check",
        ),
        (401, "Incorrect API key provided", "m (401): Incorrect API key provided; check the key"),
    ],
)
def test_refusal_of_a_model_is_answered_with_what_to_check(
    status: int, error: str, answer: str, tmp_path: Path
) -> None:
    with model_server(Reply(status=status, error=error)) as server:
        done = run("-p", "hi", "--no-mcp", "--base-url", f"{server.url}/v1", "--model", "m", cwd=tmp_path)
    assert (done.returncode, answer in done.stderr) == (4, True), done.stderr


def test_port_that_is_taken_is_named_with_another_way(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("ui", "--no-browser", "--port", str(port), cwd=tmp_path)
    reason = (
        f"can't listen on 127.0.0.1:{port}: Address already in use (choose another port: --port N, 0 for a free one)"
    )
    assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
