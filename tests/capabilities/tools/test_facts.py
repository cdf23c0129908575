"""The whole result of typical calls: what a model reads and the facts for programs are as `facts.json` has them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.adapters import PNG
from tests.support.documents import notebook
from tests.support.tools import box_of, call, context

from indusagi.capabilities.tools import native_tools
from indusagi.runtime.contract import TextContentBlock

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

FILE, DEFINITIONS = Path(__file__).with_name("facts.json"), Path(__file__).with_name("definitions.json")
ROWS: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
CODE: JsonObject = {
    "cell_type": "code",
    "source": "x = 1\ny = 2",
    "outputs": [{"output_type": "stream", "text": "out\n"}],
}
FILES = {
    "a.txt": b"one\ntwo\nthree\n",
    "crlf.txt": b"one\r\ntwo\r\n",
    "mixed.txt": b"one\r\ntwo\nthree",
    "latin.txt": "café olé\n".encode("latin-1"),
    "bom.txt": b"\xef\xbb\xbfone\n",
    "wide.txt": b"\xff\xfe" + "one\n".encode("utf-16-le"),
    "hidden.txt": "a\u202eb\n".encode(),
    "empty": b"",
    "only_bom": b"\xef\xbb\xbf",
    "book.ipynb": notebook({"cell_type": "markdown", "source": "words"}, CODE),
    "p.png": PNG,
    "data.bin": bytes(range(256)),
    "sub/deep/z.txt": b"e\n",
    ".env": b"KEY=e\n",
    ".gitignore": b"*.log\nout/\n",
    "a.log": b"e\n",
    "out/b.log": b"e\n",
}


async def run_call(root: Path, name: str, arguments: JsonObject) -> dict[str, Any]:
    """Run a call in a folder with the files; what is to be changed is read before."""
    for number, (path, data) in enumerate(FILES.items()):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        os.utime(root / path, (1_700_000_000 + number, 1_700_000_000 + number))
    async with context(root) as ctx:
        box = box_of(ctx, *native_tools())
        if name in {"edit", "write"}:
            await call(box, "read", {"path": arguments["path"]})
        outcome = await call(box, name, arguments)
    texts = [block.text if isinstance(block, TextContentBlock) else block.value for block in outcome.content]
    result = {"content": texts, "error": outcome.is_error, "details": dict(outcome.details)}
    return {"tool": name, "arguments": arguments, **json.loads(json.dumps(result).replace(str(root), "ROOT"))}


def name_row(row: dict[str, Any]) -> str:
    """Name a call in a line."""
    return f"{row['tool']} {json.dumps(row['arguments'])}"[:70]


def list_rows() -> list[Any]:
    """List the calls; `grep` starts a process."""
    starts = {True: [pytest.mark.process], False: list[pytest.MarkDecorator]()}
    return [pytest.param(row, id=name_row(row), marks=starts[row["tool"] == "grep"]) for row in ROWS]


@pytest.mark.anyio
@pytest.mark.parametrize("row", list_rows())
async def test_a_call_has_exactly_this_result(tmp_path: Path, row: dict[str, Any]) -> None:
    assert await run_call(tmp_path, row["tool"], row["arguments"]) == row


def describe_tools() -> dict[str, Any]:
    """Describe the native tools but for their words."""
    found: dict[str, Any] = {}
    for tool in native_tools():
        given = tool.descriptor
        schema = leave_out_words(json.loads(json.dumps(tool.spec.parameters)))
        found[given.name] = {"schema": schema, "annotations": given.annotations, "title": given.title}
    return found


def leave_out_words(schema: JsonValue) -> JsonValue:
    """Return a schema without its descriptions."""
    if isinstance(schema, list):
        return [leave_out_words(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "description" or not isinstance(value, str)}
    return {key: leave_out_words(value) for key, value in kept.items()}


def test_the_definitions_of_the_native_tools_are_these() -> None:
    assert describe_tools() == json.loads(DEFINITIONS.read_text("utf-8"))


@pytest.mark.anyio
@pytest.mark.process
async def test_the_facts_of_a_command_are_these(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    root, whole = str(tmp_path), {"truncated": False, "path": None, "ended": "exited"}
    async with context(tmp_path) as ctx:
        box = box_of(ctx, *native_tools())
        await call(box, "bash", {"command": "true"})  # where no sandbox works, the first result says so
        for command, expected in (
            ("printf hi; printf no >&2", {"cwd": root, "bytes": 4, "exitCode": 0}),
            ("cd sub; exit 3", {"cwd": f"{root}/sub", "bytes": 0, "exitCode": 3, "code": "failed", "notes": 1}),
            ("kill -9 $$", {"bytes": 0, "exitCode": 137, "code": "failed", "notes": 1}),
            ("cd /", {"bytes": 0, "exitCode": 0, "notes": 1}),
        ):
            details = dict((await call(box, "bash", {"command": command})).details)
            assert isinstance(details.pop("sandbox"), str)
            assert details == {**whole, **expected}, command
        large = (await call(box, "bash", {"command": "seq 100000"})).details
        assert (large["bytes"], large["truncated"], large["exitCode"]) == (588_895, True, 0)
        assert (await anyio.Path(str(large["path"])).read_text("utf-8")).startswith("1\n2\n")


@pytest.mark.anyio
@pytest.mark.process
async def test_the_facts_of_a_job_are_these(tmp_path: Path) -> None:
    async with context(tmp_path) as ctx:
        box = box_of(ctx, *native_tools())
        assert (await call(box, "process", {"action": "list"})).details == {"jobs": []}
        command = "echo hi; exec sleep 600"
        started = dict((await call(box, "process", {"action": "start", "command": command})).details)
        assert isinstance(started.pop("sandbox"), str)
        job = {**started, "command": command, "left": 0, "state": "running", "exitCode": None}
        poll: JsonObject = {"action": "poll", "id": "job-1", "match": "hi", "waitMs": 20_000}
        polled: dict[str, Any] = dict((await call(box, "process", poll)).details)
        rows: Any = (await call(box, "process", {"action": "list"})).details["jobs"]
        listed: dict[str, Any] = dict(rows[0])
        stopped: dict[str, Any] = dict((await call(box, "process", {"action": "stop", "id": "job-1"})).details)
        for details in (polled, listed, stopped):
            assert details.pop("ageS") >= 0
        facts = {"firstLine": 1, "lines": 1, "dropped": 0, "openLine": "", "matched": True}
        assert (started["id"], polled) == ("job-1", {**job, **facts})
        measured = {name: listed.pop(name) for name in ("cpuS", "rssBytes")}
        assert all(isinstance(value, (int, float)) for value in measured.values())
        assert listed == {**job, "ports": []}
        assert stopped == {**job, "state": "stopped", "exitCode": 143}
