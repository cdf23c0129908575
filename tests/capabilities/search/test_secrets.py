"""A home directory as workspace: searches skip protected paths."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.tools import box_of, call, context

from indusagi.capabilities.files.policy import workspace_policy
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.search.walk import find_secrets_below
from indusagi.capabilities.tools.find import find_tool
from indusagi.capabilities.tools.grep import grep_tool

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.files.policy import PathPolicy, PathRequest
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.process
SECRETS = (".netrc", ".ssh/id_ed25519", "kept [a]/credentials", ".config/gh/hosts.yml")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for name in (*SECRETS, "notes", "project/.netrc", "project/kept/credentials", ".ssh2"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("the key\n", encoding="utf-8")
    # Under another name, which a pattern would take for something else.
    (home / ".aws").symlink_to("kept [a]")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return home


async def grep(home: Path, **arguments: JsonValue) -> ToolOutcome:
    given = {"pattern": "key", "mode": "files", **arguments}
    return await call(box_of(context(home), grep_tool()), "grep", given)


def names_in(outcome: ToolOutcome) -> set[str]:
    assert not outcome.is_error, outcome.output
    return {line for line in str(outcome.output).split("\n")[1:] if not line.startswith("[")}


@pytest.mark.parametrize("more", [{}, {"noIgnore": True}, {"glob": "**"}])
async def test_grep_does_not_find_credentials(home: Path, more: dict[str, JsonValue]) -> None:
    outcome = await grep(home, **more)
    assert names_in(outcome) == {"notes", "project/.netrc", "project/kept/credentials", ".ssh2"}
    assert (
        "[Not looked into, for there are credentials, or what indus keeps for itself:"
        " .aws, .config/gh, .netrc, .ssh, kept [a].]"
    ) in str(outcome.output)
    assert outcome.details["protected"] == 5


async def test_a_directory_without_secrets_is_searched_without_a_notice(home: Path) -> None:
    outcome = await grep(home, path="project")
    assert names_in(outcome) == {"project/.netrc", "project/kept/credentials"}
    assert "Not looked into" not in str(outcome.output)
    assert "protected" not in outcome.details


async def test_a_secret_below_the_searched_directory_is_skipped(home: Path) -> None:
    outcome = await grep(home, path=".config")
    assert outcome.details["total"] == 0
    assert "keeps for itself: .config/gh.]" in str(outcome.output)


async def test_find_does_not_enter_protected_directories(home: Path) -> None:
    box = box_of(context(home), find_tool())
    outcome = await call(box, "find", {"query": "*", "type": "file"})
    assert names_in(outcome) == {".netrc", "notes", "project/.netrc", "project/kept/credentials", ".ssh2"}
    assert "Not looked into" in str(outcome.output)
    assert outcome.details["protected"] == 5
    assert outcome.details["ignoredDirectories"] == 0
    folders = await call(box, "find", {"query": ".ssh"})
    assert names_in(folders) == {".ssh/", ".ssh2"}


async def test_a_permitted_path_is_searched(home: Path) -> None:
    def permits(request: PathRequest) -> bool:
        return ".ssh" in request.resolved

    def open_up(policy: PathPolicy) -> PathPolicy:
        return replace(policy, permits=permits)

    fs = LocalFs(str(home), workspace_policy(str(home))).under(open_up)
    found = await find_secrets_below(fs, str(home), str(home))
    assert ".ssh" not in found
    assert ".netrc" in found


async def test_a_file_system_without_a_policy_hides_nothing(home: Path) -> None:
    assert await find_secrets_below(LocalFs(str(home)), str(home), str(home)) == ()


async def test_a_directory_far_from_secrets_needs_no_check(home: Path) -> None:
    class NoFs:
        async def resolve(self, path: str) -> str:
            raise AssertionError(path)

    place = os.path.join(home, "project")
    assert await find_secrets_below(NoFs(), place, place) == ()  # pyright: ignore[reportArgumentType]
