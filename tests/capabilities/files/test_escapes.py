"""No spelling of a path leads a tool out of the workspace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.support.tools import box_of, call, context

from indusagi.capabilities.tools.edit import edit_tool, write_tool
from indusagi.capabilities.tools.find import find_tool
from indusagi.capabilities.tools.grep import grep_tool
from indusagi.capabilities.tools.ls import ls_tool
from indusagi.capabilities.tools.read import read_tool

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.process]

TOOLS = [edit_tool(), find_tool(), grep_tool(), ls_tool(), read_tool(), write_tool()]
CALLS: dict[str, JsonObject] = {
    "read": {},
    "ls": {"depth": 3},
    "grep": {"pattern": "s.cret"},
    "find": {"query": "x"},
    "write": {"content": "evil"},
    "edit": {"oldText": "secret", "newText": "evil"},
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Lay a workspace `w` out, full of links that lead to `w-evil` beside it."""
    root, beside = tmp_path / "w", tmp_path / "w-evil"
    for folder in (root, beside):
        (folder / "sub").mkdir(parents=True)
    for name in ("x", "sub/y"):
        (beside / name).write_text("secret", encoding="utf-8")
    for name, target in {
        "file": beside / "x",
        "relative": "../w-evil/x",
        "folder": beside,
        "one": "two",
        "two": "three",
        "three": beside / "x",
        "new": beside / "new",
        "magic": f"/proc/self/root{beside}/x",
    }.items():
        (root / name).symlink_to(target)
    return beside


@pytest.mark.parametrize("tool", list(CALLS))
async def test_r43_c3_c4_c7_a_path_outside_is_refused(outside: Path, tool: str) -> None:
    box = box_of(context(outside.parent / "w"), *TOOLS)
    for path in (
        str(outside / "x"),  # c3: the root's name is the beginning of this one
        *("file", "relative", "folder", "folder/x", "one", "new", "magic"),  # c4
        "../../.kube/config",  # c7
        "sub/../../w-evil/x",
        "/etc/passwd",
        "~/.ssh/id_rsa",
        f"file://{outside}/x",
    ):
        outcome = await call(box, tool, {"path": path, **CALLS[tool]})
        assert (outcome.is_error, outcome.details.get("code")) == (True, "denied"), path
        assert "secret" not in str(outcome.output)
    assert sorted(os.listdir(outside)) == ["sub", "x"]
    for name in ("x", "sub/y"):
        assert (outside / name).read_text(encoding="utf-8") == "secret"


@pytest.mark.parametrize("tool", ["ls", "grep", "find"])
async def test_r43_links_in_the_workspace_do_not_lead_out(outside: Path, tool: str) -> None:
    box = box_of(context(outside.parent / "w"), *TOOLS)
    outcome = await call(box, tool, CALLS[tool])
    assert not outcome.is_error
    assert "secret" not in str(outcome.output)
    assert "sub/y" not in str(outcome.output)


@pytest.mark.parametrize("tool", ["write", "edit"])
async def test_c9_protected_files_are_not_written(tmp_path: Path, tool: str) -> None:
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".git/config").write_text("secret", encoding="utf-8")
    (tmp_path / "notes").symlink_to(".git/config")
    box = box_of(context(tmp_path), *TOOLS)
    for path in (".git/config", "notes", ".GIT/hooks/pre-commit", ".indusvx/mcp.json"):
        outcome = await call(box, tool, {"path": path, **CALLS[tool]})
        assert (outcome.is_error, outcome.details["code"]) == (True, "denied")
        assert outcome.details["refusal"] == "protected"
        assert "Ask the user" in str(outcome.output)
    assert (tmp_path / ".git/config").read_text(encoding="utf-8") == "secret"
    assert sorted(os.listdir(tmp_path)) == [".git", "notes"]


@pytest.mark.parametrize("tool", ["read", "write", "edit", "grep"])
async def test_r44_a_pipe_and_a_device_do_not_block_a_tool(tmp_path: Path, tool: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    box = box_of(context(tmp_path), *TOOLS)
    for path in ("pipe", "/dev/zero", "/proc/self/mem"):
        outcome = await call(box, tool, {"path": path, **CALLS[tool]})
        assert outcome.is_error
