"""Names and values that other agents use for arguments reach the native tools under our names."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.capabilities.tools import native_tools
from indusagi.capabilities.tools.paths import path_given, path_trouble
from indusagi.runtime.contract import TextContentBlock

if TYPE_CHECKING:
    from indusagi.capabilities.tool import DefinedTool
    from indusagi.core.json import JsonObject

PATH = {"file_path": "path", "filePath": "path", "filepath": "path", "file": "path"}
TEXTS = {
    "old_string": "oldText",
    "oldString": "oldText",
    "old_text": "oldText",
    "old_str": "oldText",
    "new_string": "newText",
    "newString": "newText",
    "new_text": "newText",
    "new_str": "newText",
    "replace_all": "replaceAll",
}
NAMES: dict[str, dict[str, str]] = {
    "read": {**PATH, "line": "offset", "start_line": "offset", "startLine": "offset"},
    "write": {**PATH, "contents": "content", "text": "content", "file_text": "content"},
    "edit": {**PATH, **TEXTS, "dry_run": "dryRun"},
    "ls": {
        **PATH,
        **dict.fromkeys(("directory", "dir", "dir_path"), "path"),
        **dict.fromkeys(("show_hidden", "hidden", "all"), "showHidden"),
        "exclude": "ignore",
    },
    "find": {**PATH, "pattern": "query", "glob": "query", "name": "query", "no_ignore": "noIgnore"},
    "grep": {
        **PATH,
        "query": "pattern",
        "regex": "pattern",
        "output_mode": "mode",
        "include": "glob",
        "max_matches": "maxMatches",
        "head_limit": "maxMatches",
        "no_ignore": "noIgnore",
        "fixed_strings": "literal",
        "-A": "after",
        "-B": "before",
        "-C": "context",
    },
    "bash": {
        "cmd": "command",
        "script": "command",
        "timeout_ms": "timeoutMs",
        "workdir": "cwd",
        "working_directory": "cwd",
        "run_in_background": "background",
        "is_background": "background",
    },
    "process": {
        "cmd": "command",
        **dict.fromkeys(("job", "jobId", "job_id"), "id"),
        "since_last": "sinceLast",
        "wait_ms": "waitMs",
        "timeoutMs": "waitMs",
        "text": "input",
    },
    "webfetch": {
        "uri": "url",
        "link": "url",
        "max_bytes": "maxBytes",
        "maxLength": "maxBytes",
        "start_index": "offset",
        "startIndex": "offset",
    },
    "websearch": {
        "q": "query",
        "search_query": "query",
        **dict.fromkeys(("max_results", "count", "limit", "numResults"), "maxResults"),
        "allowed_domains": "domains",
        "exclude_domains": "excludeDomains",
        "blocked_domains": "excludeDomains",
    },
}


def find_tool(name: str) -> DefinedTool:
    """Make a native tool."""
    return next(tool for tool in native_tools() if tool.spec.name == name)


def make_value(schema: Any) -> Any:
    """Make a value that a schema accepts."""
    if "enum" in schema:
        return schema["enum"][-1]
    values = {"string": "words", "boolean": True, "integer": max(1, schema.get("minimum", 1)), "array": ["words"]}
    return values[schema["type"]]


@pytest.mark.anyio
@pytest.mark.parametrize("name", NAMES)
async def test_names_of_other_agents_are_understood(name: str) -> None:
    schema: Any = find_tool(name).spec.parameters
    properties: dict[str, Any] = schema["properties"]
    for other, ours in NAMES[name].items():
        given: JsonObject = {key: make_value(properties[key]) for key in schema.get("required", ())}
        given |= {key: make_value(properties[key]) for key in ("oldText", "newText") if key in properties}
        expected = {**given, ours: make_value(properties[ours])}
        given.pop(ours, None)
        assert await find_tool(name).prepare_call({**given, other: expected[ours]}) == expected, other


@pytest.mark.anyio
@pytest.mark.parametrize("other", TEXTS)
async def test_names_of_other_agents_are_understood_in_each_edit(other: str) -> None:
    row: JsonObject = {"oldText": "a", "newText": "b", TEXTS[other]: True if "ll" in other else "c"}
    given = {**{key: value for key, value in row.items() if key != TEXTS[other]}, other: row[TEXTS[other]]}
    assert await find_tool("edit").prepare_call({"path": "f", "edits": [given]}) == {"path": "f", "edits": [row]}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        *[(other, "file") for other in ("f", "files", "file")],
        *[(other, "dir") for other in ("d", "directory", "directories", "folder", "dir")],
        *[(other, "link") for other in ("l", "symlink", "link")],
        ("any", None),
        ("all", None),
    ],
)
async def test_kinds_of_files_have_other_names(given: str, kind: str | None) -> None:
    expected = {"query": "a"} if kind is None else {"query": "a", "type": kind}
    assert await find_tool("find").prepare_call({"query": "a", "type": given}) == expected


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mode": "files_with_matches"}, {"mode": "files"}),
        ({"output_mode": "filesWithMatches"}, {"mode": "files"}),
        ({"mode": "count"}, {"mode": "count"}),
        *[({name: True}, {"flags": "i"}) for name in ("-i", "ignoreCase", "ignore_case")],
        *[({name: True}, {"flags": "i"}) for name in ("caseInsensitive", "case_insensitive")],
        *[({name: False}, {"flags": "i"}) for name in ("caseSensitive", "case_sensitive")],
        *[({name: False}, {}) for name in ("-i", "ignoreCase", "ignore_case", "caseInsensitive", "case_insensitive")],
        *[({name: True}, {}) for name in ("caseSensitive", "case_sensitive")],
        *[({name: True}, {}) for name in ("-n", "lineNumbers", "line_numbers")],
        ({"flags": "-s", "-i": True}, {"flags": "si"}),
        ({"flags": "-x"}, {"flags": "x"}),
    ],
)
async def test_flags_of_other_searches_are_understood(given: JsonObject, expected: JsonObject) -> None:
    assert await find_tool("grep").prepare_call({"pattern": "a", **given}) == {"pattern": "a", **expected}


@pytest.mark.parametrize(
    ("code", "errors"),
    [
        ("not_found", [errno.ENOENT, errno.ENOTDIR, errno.ELOOP]),
        ("denied", [errno.EACCES, errno.EPERM, errno.EROFS]),
        ("is_directory", [errno.EISDIR]),
        ("encoding", [errno.EILSEQ]),
        ("no_space", [errno.ENOSPC]),
        ("too_large", [errno.EFBIG]),
        ("unsupported", [errno.ENOTSUP]),
        ("timeout", [errno.ETIMEDOUT]),
        ("failed", [errno.EIO, errno.EMFILE]),
    ],
)
def test_errors_of_the_file_system_have_codes(code: str, errors: list[int]) -> None:
    found = [path_trouble(OSError(number, os.strerror(number)), "a") for number in errors]
    assert [(one.is_error, one.details["code"]) for one in found] == [(True, code)] * len(errors)
    assert path_trouble(OSError("a reason"), "a").content[0] == TextContentBlock("a: a reason")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (None, "."),
        ("", "."),
        (7, "."),
        ("a", "a"),
        ("a~", "a~"),
        ("~/a", "HOME/a"),
        ("file:///a/b%20c#d?e", "/a/b c#d?e"),
        ("file://localhost/a", "/a"),
        ("file://host/a", "host/a"),
        ("file://a", "a"),
        ("file://", "."),
        ("afile:///b", "afile:///b"),
    ],
)
def test_paths_are_given_in_several_forms(given: Any, path: str) -> None:
    path = path.replace("HOME", os.path.expanduser("~"))
    assert path_given({"path": given}) == path
    assert path_given({"cwd": given, "path": "x"}, "cwd", "y") == ("y" if path == "." else path)
