"""Parameters of an editor's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from induscode.frontends.acp.agent import name_resource, parse_cwd, parse_prompt, parse_servers

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonValue


def test_servers_become_rows_of_a_configuration_file() -> None:
    stdio: JsonValue = {"name": "a", "command": "/bin/a", "args": ["-x"], "env": [{"name": "K", "value": "v"}]}
    sse: JsonValue = {"type": "sse", "name": "b", "url": "http://b", "headers": [{"name": "h", "value": "1"}]}
    assert parse_servers([stdio, sse]) == {
        "a": {"type": "stdio", "command": "/bin/a", "args": ["-x"], "env": {"K": "v"}},
        "b": {"type": "sse", "url": "http://b", "headers": {"h": "1"}},
    }
    assert parse_servers(None) == parse_servers({}) == {}


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ({"a": {}}, "must be an array"),
        (["a"], "must be an object"),
        ([{"command": "a"}], "name must be a text"),
        ([{"name": "a"}], "command must be a text"),
        ([{"name": "a", "type": "http"}], "url must be a text"),
        ([{"name": "a", "type": "acp", "id": "1"}], "transport 'acp'"),
        ([{"name": "a", "command": "a", "args": [1]}], "args of server 'a'"),
        ([{"name": "a", "command": "a", "env": [{"name": "K"}]}], "env of server 'a'"),
        ([{"name": "a", "command": "a"}, {"name": "a", "command": "b"}], "two servers 'a'"),
    ],
)
def test_a_server_that_cannot_be_used_is_named(servers: JsonValue, problem: str) -> None:
    with pytest.raises(RpcError, match=problem):
        parse_servers(servers)


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ([], "not empty"),
        ("text", "must be an array"),
        (["text"], "must be an object"),
        ([{"type": "text"}], "must have a text"),
        ([{"type": "image", "mimeType": "image/tiff", "data": ""}], "'image/tiff' is not supported"),
        ([{"type": "image", "mimeType": "image/png", "data": "???"}], "not base64"),
        ([{"type": "resource", "resource": {"uri": "a", "blob": "", "mimeType": "a/b"}}], "'a/b' is not supported"),
        ([{"type": "resource"}], "'resource' is not supported"),
    ],
)
def test_a_block_that_cannot_be_used_is_named(blocks: JsonValue, problem: str) -> None:
    with pytest.raises(RpcError, match=problem):
        parse_prompt(blocks)


def test_an_image_alone_has_words_beside_it() -> None:
    prompt = parse_prompt([{"type": "image", "mimeType": "image/png", "data": "cA=="}])
    assert prompt.text == "See the attached image."
    assert prompt.attachments[0].data == b"p"


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("file:///a%20b/c.py", "/a b/c.py"),
        ("file:///a.py#L3:4", "/a.py#L3:4"),
        ("file://other/a.py", "file://other/a.py"),
        ("https://example.com/a", "https://example.com/a"),
    ],
)
def test_a_file_is_named_by_its_path(uri: str, name: str) -> None:
    assert name_resource(uri) == name


def test_the_working_directory_is_a_real_path(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert parse_cwd({"cwd": str(link)}) == str(tmp_path.resolve())
    (tmp_path / "file").touch()
    for path in ("file", str(tmp_path / "file"), "/a\0b"):
        with pytest.raises(RpcError, match=r"absolute path|cannot be used"):
            parse_cwd({"cwd": path})
