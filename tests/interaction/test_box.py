"""The kernel as a loop sees it, through the names it is documented under."""

from __future__ import annotations

import hashlib
import os
import stat
from datetime import datetime
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.interaction.requirements import requirement
from tests.support.waiting import running, until

from indusagi.capabilities import (
    Framework,
    InvalidTool,
    JsonContentBlock,
    PerContext,
    ReadState,
    TextContentBlock,
    ToolRegistry,
    ToolResult,
    ToolSpec,
    define_tool,
    make_local_context,
)
from indusagi.core import CancelToken, CoreError, NotJson, content_hash, iso_utc, new_ulid
from indusagi.runtime import ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities import DefinedTool, ToolBox, ToolContext
    from indusagi.core import JsonObject, JsonValue
    from indusagi.runtime import ToolOutcome

pytestmark = pytest.mark.anyio

IMAGE: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png", "x-vendor": None}
TODO: PerContext[list[str]] = PerContext(list)
A_WHILE = f"600.{os.getpid()}"
"""Seconds to sleep that no other test process sleeps: what sleeps so long is of this one."""


async def answer(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Answer with the blocks that were asked for."""
    blocks = arguments["blocks"]
    assert isinstance(blocks, list)
    return ToolResult([TextContentBlock(b) if isinstance(b, str) else JsonContentBlock(b) for b in blocks])


async def remember(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
    TODO.of(ctx).append(str(arguments["item"]))
    return [*TODO.of(ctx)]


async def fail(arguments: JsonObject, ctx: ToolContext) -> None:
    raise ZeroDivisionError("by zero")


async def seen(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
    state = ctx.framework.read_state
    return None if state is None else state.digest("/file")


async def command(arguments: JsonObject, ctx: ToolContext) -> str:
    result = await ctx.shell.exec(f"sleep {A_WHILE} & touch started; wait")
    return str(result.ended)


def tools() -> list[DefinedTool]:
    anything: JsonObject = {"type": "object"}
    item: JsonObject = {
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
        "additionalProperties": False,
    }
    return [
        define_tool(ToolSpec("answer", "Answer.", anything, answer)),
        define_tool(ToolSpec("remember", "Remember.", item, remember)),
        define_tool(ToolSpec("fail", "Fail.", anything, fail)),
        define_tool(ToolSpec("seen", "See.", anything, seen)),
        define_tool(ToolSpec("command", "Run.", anything, command)),
    ]


def box(tmp_path: Path, framework: Framework | None = None) -> ToolBox:
    registry = ToolRegistry()
    registry.register_all(tools())
    return registry.to_tool_box(make_local_context(str(tmp_path), framework=framework))


async def call(box: ToolBox, name: str, arguments: JsonValue) -> ToolOutcome:
    return await box.runner.run(ToolCall("call", name, arguments), CancelToken())


@requirement(
    "deck/runtime-adapter/one-text",
    "deck/runtime-adapter/one-json",
    "deck/runtime-adapter/many",
    "interop/mounting/content",
)
@pytest.mark.parametrize(
    ("blocks", "output"),
    [
        (["hello"], "hello"),
        ([{"a": 1}], {"a": 1}),
        ([IMAGE], IMAGE),
        ([], []),
        (["a", IMAGE], [{"type": "text", "text": "a"}, {"type": "json", "value": IMAGE}]),
    ],
)
async def test_blocks_arrive_unchanged_and_fold_into_one_value(
    tmp_path: Path, blocks: list[JsonValue], output: JsonValue
) -> None:
    outcome = await call(box(tmp_path), "answer", {"blocks": blocks})
    assert outcome.output == output
    assert outcome.content == tuple(TextContentBlock(b) if isinstance(b, str) else JsonContentBlock(b) for b in blocks)


@requirement("deck/runtime-adapter/unknown-tool")
async def test_a_tool_that_does_not_exist_is_an_error_outcome(tmp_path: Path) -> None:
    outcome = await call(box(tmp_path), "anwser", {})
    assert outcome.is_error
    assert outcome.output == "There is no tool named 'anwser'. Did you mean 'answer'?"


@requirement("deck/card/never-raises")
async def test_a_tool_that_fails_is_an_error_outcome(tmp_path: Path) -> None:
    outcome = await call(box(tmp_path), "fail", {})
    assert (outcome.is_error, outcome.output) == (True, "fail failed: ZeroDivisionError: by zero")


@requirement("deck/runtime-adapter/one-context", "deck/stores/per-session")
async def test_a_session_remembers_across_calls_and_shares_with_no_other(tmp_path: Path) -> None:
    one, other = box(tmp_path), box(tmp_path)
    assert (await call(one, "remember", {"item": "a"})).output == ["a"]
    assert (await call(one, "remember", {"item": "b"})).output == ["a", "b"]
    assert (await call(other, "remember", {"item": "c"})).output == ["c"]


@requirement("deck/runtime-adapter/read-state")
async def test_a_tool_sees_the_read_state_of_its_host(tmp_path: Path) -> None:
    state = ReadState()
    state.record("/file", "digest")
    assert (await call(box(tmp_path, Framework(read_state=state)), "seen", {})).output == "digest"
    assert (await call(box(tmp_path), "seen", {})).output == []


@requirement("kernel/arguments")
async def test_a_misspelt_key_is_answered_with_the_likely_one(tmp_path: Path) -> None:
    outcome = await call(box(tmp_path), "remember", {"itme": 3})
    assert outcome.is_error
    assert outcome.output == (
        "remember was not run, the arguments do not fit:\n"
        "- 'item' is missing and required; 'itme' was given, which is not its name\n"
        "- 'itme' is not accepted; did you mean 'item'? Accepted: item"
    )


@requirement("kernel/budget")
async def test_a_long_answer_is_cut_and_kept_in_full_in_a_private_file(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(100_000))
    outcome = await call(box(tmp_path), "answer", {"blocks": [text]})
    path = outcome.details["spill"]
    assert isinstance(path, str)
    assert path in str(outcome.output)
    assert len(str(outcome.output)) < 60_000
    assert await anyio.Path(path).read_text(encoding="utf-8") == text
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600


@requirement("kernel/cancel-reaches-commands", "deck/card/cancelled")
async def test_cancelling_a_call_ends_the_command_and_its_children(tmp_path: Path) -> None:
    token, outcomes = CancelToken(), list["ToolOutcome"]()
    deck = box(tmp_path)

    async def run() -> None:
        outcomes.append(await deck.runner.run(ToolCall("1", "command", {}), token))

    started = tmp_path / "started"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(started.exists)
        token.cancel("Ctrl-C")
    assert [(o.is_error, o.output) for o in outcomes] == [(True, "command was stopped: Ctrl-C")]
    # By what they are called: a sandbox has numbers of its own for processes.
    assert running("sleep", A_WHILE) == []


@requirement("kernel/task-cancellation")
async def test_the_cancellation_of_the_callers_task_passes_through(tmp_path: Path) -> None:
    with anyio.move_on_after(0.05) as scope:
        await call(box(tmp_path), "command", {})
    assert scope.cancelled_caught


@requirement("interop/fleet/last-registration-wins")
async def test_the_later_of_two_tools_with_one_name_is_used_and_noted(tmp_path: Path) -> None:
    registry = ToolRegistry()
    registry.register_all(tools())
    registry.register(define_tool(ToolSpec("answer", "Fail.", {"type": "object"}, fail)))
    made = registry.to_tool_box(make_local_context(str(tmp_path)))
    assert (await call(made, "answer", {})).is_error
    assert [note.owner for note in registry.notes] == ["tool 'answer'"]


@requirement("interop/host/catalog")
def test_a_box_lists_its_tools_as_they_were_defined(tmp_path: Path) -> None:
    listed = box(tmp_path).descriptors()
    assert [d.name for d in listed] == ["answer", "remember", "fail", "seen", "command"]
    assert [d.parameters for d in listed] == [t.parameters for t in tools()]


@requirement("deck/keys/content-hash")
def test_content_hash_is_the_start_of_sha256_over_compact_json() -> None:
    expected = hashlib.sha256(b'{"name":"fs__read","schema":null}').hexdigest()[:32]
    assert content_hash({"name": "fs__read", "schema": None}) == expected


@requirement("deck/keys/insertion-order")
def test_the_order_of_keys_changes_the_hash_unless_they_are_sorted_first() -> None:
    one = {"name": "n", "schema": {"a": 1, "b": 2}}
    other = {"schema": {"b": 2, "a": 1}, "name": "n"}
    assert content_hash(one) != content_hash(other)
    assert content_hash(one, sort_keys=True) == content_hash(other, sort_keys=True)


@requirement("deck/keys/ulid")
def test_ids_made_in_one_burst_rise() -> None:
    made = [new_ulid() for _ in range(5_000)]
    assert made == sorted(set(made))
    assert {len(identity) for identity in made} == {26}


@requirement("deck/ledger/iso-time")
def test_a_time_is_written_in_utc() -> None:
    offset = datetime.fromisoformat(iso_utc()).utcoffset()
    assert offset is not None
    assert not offset
    assert iso_utc().endswith("Z")


@requirement("interop/neighbours/core-error")
def test_the_errors_of_the_project_have_one_root() -> None:
    for error in (NotJson, InvalidTool):
        assert issubclass(error, CoreError)
    with pytest.raises(CoreError):
        define_tool(ToolSpec("bad name", "", {"type": "object"}, fail))
