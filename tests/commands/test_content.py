"""`indus resources`, `indus prompts`, and `indus call` for both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.calls.helpers import read_calls
from tests.commands.helpers import PYTHON, configured, told, user_file
from tests.support.scripts import run
from tests.support.servers import SERVERS

from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor
from induscode.boot.runners import _MAX_ABOUT, _shorten
from induscode.deck.mcp.capability import BridgeCapability

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_resources_and_prompts_are_listed_read_and_got(tmp_path: Path) -> None:
    row = {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "library.py")]}
    configured(user_file(), {"lib": row})
    listed = run("resources", cwd=tmp_path)
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == [
        "@lib:note:///today", "@lib:ui://shelf/app.html", "@lib:book://{id}/text",
    ]  # fmt: skip
    # From the ledger: the server is not started again.
    prompts = told("prompts", "list", "lib", "--json", "--no-check", cwd=tmp_path)["prompts"]
    assert [(row["server"], row["kind"], row["name"]) for row in prompts] == [("lib", "prompt", "lib__greet")]
    read = run("call", "@lib:book://7/text", "--output", "raw", cwd=tmp_path)
    assert (read.returncode, read.stdout.splitlines()[-1]) == (0, "Book 7 of library.")
    asked = json.loads(run("prompts", "get", "/lib:greet", "who=Ada", "--output", "json", cwd=tmp_path).stdout)
    assert asked["structured"]["messages"][0]["content"]["text"] == "library greets Ada"
    missing = run("call", "@lib:none:x", cwd=tmp_path)
    assert (missing.returncode, "Resource not found" in missing.stdout) == (1, True)
    unlisted = run("prompts", "get", "/lib:secret", cwd=tmp_path)
    assert (unlisted.returncode, "server 'lib' lists no prompt 'secret'" in unlisted.stdout) == (1, True)
    nameless = run("prompts", "get", "lib", cwd=tmp_path)
    assert (nameless.returncode, "names no prompt: write /lib:prompt" in nameless.stderr) == (2, True)
    records = [(one.via, one.shown_name, one.outcome, one.code) for one in read_calls()]
    assert records == [
        ("call", "@lib:(unlisted)", "ok", ""),
        ("call", "/lib:greet", "ok", ""),
        ("call", "@lib:(unlisted)", "error", "refused"),
        ("call", "/lib:(unlisted)", "error", "unknown_prompt"),
    ]
    unknown = run("call", "@other:x", cwd=tmp_path)
    assert (unknown.returncode, "there is no server 'other'" in unknown.stderr) == (2, True)


def test_raw_is_the_text_of_a_resource_alone_and_messages_are_lines(tmp_path: Path) -> None:
    row = {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "library.py")]}
    configured(user_file(), {"lib": row})
    assert run("call", "@lib:book://7/text", "--output", "raw", cwd=tmp_path).stdout == "Book 7 of library."
    assert run("resources", "read", "@lib:note:///today", "--output", "raw", cwd=tmp_path).stdout == "read by library"
    got = run("prompts", "get", "/lib:greet", "who=Ada", "--output", "raw", cwd=tmp_path)
    assert got.stdout == "user: library greets Ada\nnote"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("@lib:note:///today", "who=Ada"), "a resource takes no arguments"),
        (("@lib:note:///today", "--json", '{"a": 1}'), "a resource takes no arguments"),
        (("@lib:",), "'@lib:' names no uri: write @lib:uri"),
        (("/lib:",), "'/lib:' names no prompt: write /lib:prompt"),
        (("@lib:note:///today", "--stdio", "true"), "--stdio can't be used with '@lib:note:///today'"),
        (("/lib:greet", "--url", "http://127.0.0.1:1"), "--url can't be used with '/lib:greet'"),
    ],
)
def test_what_a_reference_does_not_take_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    row = {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "library.py")]}
    configured(user_file(), {"lib": row})
    refused = run("call", *words, cwd=tmp_path)
    assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("length", "shown"), [(_MAX_ABOUT, "x" * _MAX_ABOUT), (_MAX_ABOUT + 1, "x" * (_MAX_ABOUT - 1) + "…")]
)
def test_description_in_a_table_has_a_longest_length(length: int, shown: str) -> None:
    descriptor = ToolDescriptor("s__t", "x" * length, {})
    assert _shorten(BridgeCapability.from_definition(descriptor, RemoteToolRef("s", "t"))) == shown
