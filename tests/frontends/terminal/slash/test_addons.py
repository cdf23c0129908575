"""`/addons`: what it lists, in a session without a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.support.addons import add_project_addon, build_source

from induscode.addons.loader import load_addons
from induscode.addons.skills import SkillSet
from induscode.frontends.terminal.slash import SlashError
from induscode.frontends.terminal.slash.tools import ADDONS
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from pathlib import Path


class Host:
    """Collects what a command shows."""

    def __init__(self, cwd: Path, **flags: Any) -> None:
        invocation = Invocation(cwd=str(cwd), **flags)
        enabled = not invocation.no_addons
        self.addons = anyio.run(lambda: load_addons(str(cwd), required=["audit"], enabled=enabled))
        self.conversation: Any = SimpleNamespace(
            invocation=invocation,
            session=SimpleNamespace(addons=self.addons),
            skills=SkillSet(str(cwd), enabled=enabled),
            hooks=SimpleNamespace(notes=[]),
        )
        self.screen: Any = SimpleNamespace(show=self.show)
        self.lines: list[str] = []
        self.rows: dict[str, tuple[str, ...]] = {}

    def show(self, line: str) -> None:
        self.lines.append(line)

    def print_table(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        assert heads == ("NAME", "SOURCE", "STATE", "ADDS")
        self.rows = {row[0]: row for row in rows}
        assert len(self.rows) == len(rows), "an addon is listed twice"

    def run(self, rest: str = "") -> None:
        self.lines, self.rows = [], {}
        anyio.run(ADDONS.run, cast("Any", self), rest)


def test_every_addon_is_listed_with_its_state_and_reason(tmp_path: Path) -> None:
    add_project_addon(tmp_path, "good", build_source())
    add_project_addon(tmp_path, "waiting", build_source(), trusted=False)
    add_project_addon(tmp_path, "broken", "raise ValueError('no')")
    host = Host(tmp_path)
    add_project_addon(tmp_path, "late", build_source())
    host.addons.skipped.add("good")
    host.run()
    assert host.rows["good"][2:] == ("skipped since it failed", "0 cards, 1 interceptor")
    assert host.rows["waiting"][2] == "not loaded: it isn't trusted yet"
    assert host.rows["late"][2] == "loads with the next session"
    assert host.rows["audit"][2].startswith("required and missing: there is no such addon")
    shown = "\n".join(host.lines)
    assert "/addons trust waiting" in shown
    assert "addon 'broken' of" in shown


def test_a_required_addon_without_consent_is_listed_once(tmp_path: Path) -> None:
    add_project_addon(tmp_path, "audit", build_source(), trusted=False)
    host = Host(tmp_path)
    assert [*host.addons.missing] == ["audit"]
    host.run()
    assert host.rows["audit"][2] == "not loaded: it isn't trusted yet"


def test_a_session_without_addons_says_so(tmp_path: Path) -> None:
    host = Host(tmp_path, no_addons=True)
    host.run()
    assert "required and missing: --no-addons is given" in host.rows["audit"][2]
    host.addons.missing.clear()
    host.run()
    assert host.lines == ["no addons: --no-addons is given"]
    with pytest.raises(SlashError, match="/addons trust NAME"):
        host.run("x")


def test_a_project_without_addons_names_the_page(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.addons.missing.clear()
    host.run()
    assert host.lines == ["there are no addons: docs/guides/addons.md shows how one is written"]
