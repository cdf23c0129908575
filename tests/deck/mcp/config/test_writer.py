"""The only writer of our own files: merged, atomic, private, and nothing lost."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.core import app_dirs
from induscode.deck.contract import BridgeFault
from induscode.servers.config.writer import change_row, edit_own_config, own_config_path, read_own_config

if TYPE_CHECKING:
    from pathlib import Path

ROW: Any = {"command": "x"}


def written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def put(path: str, name: str = "new", *, private: bool = True) -> None:
    with edit_own_config(path, private=private) as config:
        config.put(name, dict(ROW))


def read(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def test_own_config_paths_of_user_and_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    assert own_config_path("user", "/w") == str(tmp_path / "c" / "indus" / "mcp.json")
    old = tmp_path / "c" / "indusvx" / "mcp.json"
    old.parent.mkdir(parents=True)
    old.touch()
    assert own_config_path("user", "/w") == str(old), "an older version wrote it"
    assert own_config_path("project", "/w") == "/w/.indusvx/mcp.json"


def test_a_file_is_made_for_the_user_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b" / "mcp.json")
    put(path)
    assert read(path) == {"servers": {"new": ROW}}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    assert os.listdir(os.path.dirname(path)) == ["mcp.json"]


def test_a_file_of_the_project_keeps_its_mode(tmp_path: Path) -> None:
    path = written(tmp_path / ".indusvx" / "mcp.json", "{}")
    os.chmod(path, 0o640)
    put(path, private=False)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", {"servers": {"new": ROW}}),
        ("{}", {"servers": {"new": ROW}}),
        ('{"servers": {"a": {"url": "u", "x-vendor": [1]}}, "other": {"b": null}}',
         {"servers": {"a": {"url": "u", "x-vendor": [1]}, "new": ROW}, "other": {"b": None}}),
        ('{"servers": [{"name": "a", "command": "y"}, 5]}',
         {"servers": [{"name": "a", "command": "y"}, 5, {"name": "new", **ROW}]}),
        ('{"servers": [{"name": "new", "command": "y"}, {"name": "z"}]}',
         {"servers": [{"name": "new", **ROW}, {"name": "z"}]}),
        ('{"mcpServers": {"a": {"command": "y"}}}',
         {"mcpServers": {"a": {"command": "y"}, "new": ROW}}),
        ('\ufeff{"servers": {}}', {"servers": {"new": ROW}}),
    ],
)  # fmt: skip
def test_a_row_is_merged_into_the_existing_file(tmp_path: Path, before: str, after: object) -> None:
    path = written(tmp_path / "mcp.json", before)
    put(path)
    assert read(path) == after
    assert "new" in read_own_config(path).rows()


@pytest.mark.parametrize("indent", ["\t", "    ", " "])
def test_the_indentation_and_the_order_stay(tmp_path: Path, indent: str) -> None:
    text = json.dumps({"z": 1, "servers": {"b": {}, "a": {}}}, indent=indent)
    path = written(tmp_path / "mcp.json", text)
    put(path)
    with open(path, encoding="utf-8") as file:
        after = file.read()
    grown: Any = {"z": 1, "servers": {"b": {}, "a": {}, "new": ROW}}
    assert after == json.dumps(grown, indent=indent) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"servers": {} /* mine */}', "has comments or trailing commas, which would be lost"),
        ('{"servers": {},}', "has comments or trailing commas"),
        ('{"servers": {}', "invalid JSON"),
        ('{"servers": {"a": {}, "a": {}}}', "the key 'a' occurs twice"),
        ("[]", "is not a JSON object"),
        ('{"servers": 5}', "are neither a list nor an object"),
        ('{"servers": {"a": {}}, "inputs": []}', "is written in the dialect of vscode"),
        ('{"mcp_servers": {}}', "is written in the dialect of codex"),
        ('{"servers": {}, "n": 1e999}', "cannot be written again"),
    ],
)
def test_a_file_that_would_lose_something_is_left_as_it_is(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "mcp.json", text)
    with pytest.raises(BridgeFault, match=said):
        put(path)
    with open(path, encoding="utf-8") as file:
        assert file.read() == text
    assert os.listdir(tmp_path) == ["mcp.json"]


def test_an_unreadable_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b"\xff")
    with pytest.raises(BridgeFault, match="is not UTF-8 at byte 0"):
        put(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(BridgeFault, match="cannot be read: not a regular file"):
        put(str(path))


def test_a_row_of_a_list_is_taken_out_alone(tmp_path: Path) -> None:
    text = '{"servers": [{"name": "a"}, 5, {"name": "b"}]}'
    path = written(tmp_path / "mcp.json", text)
    with edit_own_config(path, private=True) as config:
        assert config.remove("a")
        assert not config.remove("c")
    assert read(path) == {"servers": [5, {"name": "b"}]}


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    path = written(tmp_path / "mcp.json", '{"x": "\\ud800", "servers": {}}')
    put(path)
    assert read(path)["x"] == "\ud800"


def test_nothing_is_written_if_nothing_changed(tmp_path: Path) -> None:
    path = written(tmp_path / "mcp.json", '{ "servers":{} }')
    assert not change_row(path, "unknown", dict, private=True)
    with edit_own_config(path, private=True) as config:
        assert not config.remove("unknown")
    with open(path, encoding="utf-8") as file:
        assert file.read() == '{ "servers":{} }'
    missing = str(tmp_path / "not" / "there.json")
    assert not change_row(missing, "unknown", dict, private=True)
    assert not os.path.exists(missing)


def test_a_change_that_fails_half_way_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "mcp.json", '{"servers": {}}')

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        put(path)
    assert os.listdir(tmp_path) == ["mcp.json"]
    assert read(path) == {"servers": {}}


def test_a_users_link_is_written_where_it_leads(tmp_path: Path) -> None:
    real = written(tmp_path / "dotfiles" / "mcp.json", "{}")
    link = tmp_path / "mcp.json"
    link.symlink_to(real)
    put(str(link))
    assert link.is_symlink()
    assert read(real) == {"servers": {"new": ROW}}


@pytest.mark.parametrize("which", ["file", "folder"])
def test_c14_a_projects_link_is_never_followed(tmp_path: Path, which: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "w" / ".indusvx"
    if which == "file":
        folder.mkdir(parents=True)
        (folder / "mcp.json").symlink_to(outside / "mcp.json")
    else:
        folder.parent.mkdir()
        folder.symlink_to(outside)
    with pytest.raises(BridgeFault, match="is a link: it is not followed"):
        put(str(folder / "mcp.json"), private=False)
    assert os.listdir(outside) == []


def test_concurrent_writers_lose_no_row(tmp_path: Path) -> None:
    path = str(tmp_path / "mcp.json")
    threads = [threading.Thread(target=put, args=(path, f"s{n}")) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read(path)["servers"]) == sorted(f"s{n}" for n in range(16))


def test_a_lock_that_is_never_released_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_dirs, "_LONGEST_WAIT_S", 0.05)
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(BridgeFault, match="held by another process: try again"):
            put(str(tmp_path / "mcp.json"))
    finally:
        os.close(handle)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _VALUES), st.dictionaries(st.text(), _VALUES))
def test_whatever_else_is_in_a_file_stays(
    tmp_path_factory: pytest.TempPathFactory, servers: dict[str, object], rest: dict[str, object]
) -> None:
    strange = {"servers", "mcpServers", "mcp", "mcp_servers", "inputs"}
    kept = {key: value for key, value in rest.items() if key not in strange}
    document = {**kept, "servers": servers}
    path = tmp_path_factory.mktemp("w") / "mcp.json"
    written(path, json.dumps(document))
    put(str(path))
    assert read(str(path)) == {**kept, "servers": {**servers, "new": ROW}}
    with edit_own_config(str(path), private=True) as config:
        assert config.remove("new")
    servers.pop("new", None)
    assert read(str(path)) == {**kept, "servers": servers}
