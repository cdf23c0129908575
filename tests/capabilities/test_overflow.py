from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.tools import box_of, call, context, returning

from indusagi.capabilities import budget as spill
from indusagi.capabilities.budget import UNLIMITED, OutputBudget, SessionDir
from indusagi.core.app_dirs import state_dir
from indusagi.runtime.contract import JsonContentBlock, Keep, TextContentBlock, ToolResult

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.anyio
SMALL = OutputBudget(100, 5)
LONG = "".join(f"line {n}\n" for n in range(1, 101))


async def outcome_of(tmp_path: Path, answer: ToolResult | JsonValue) -> ToolOutcome:
    return await call(box_of(context(tmp_path, SMALL), returning(answer)), "probe")


def spilled(outcome: ToolOutcome) -> Path:
    path = outcome.details["spill"]
    assert isinstance(path, str)
    return Path(path)


async def test_result_within_the_budget_is_unchanged(tmp_path: Path) -> None:
    answer = ToolResult.text("short")
    outcome = await outcome_of(tmp_path, answer)
    assert outcome.result is answer
    assert os.listdir(os.environ["HOME"]) == []


async def test_long_result_is_cut_and_names_the_file_with_the_whole(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, LONG)
    path = spilled(outcome)
    assert path.read_text(encoding="utf-8") == LONG
    assert outcome.output == (
        "line 1\nline 2\nline 3\nline 4\nline 5\n"
        "[Cut here. 100 lines, 792 bytes: the beginning is shown. The whole is in "
        f"{path}: read it with an offset (the cut starts in line 6) and a limit.]"
    )
    assert not outcome.is_error


async def test_whole_result_is_kept_in_a_private_file(tmp_path: Path) -> None:
    path = spilled(await outcome_of(tmp_path, LONG))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    folder = path.parent
    while folder != Path(state_dir()).parent:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder = folder.parent


async def test_tool_chooses_which_end_is_kept(tmp_path: Path) -> None:
    tail = await outcome_of(tmp_path, replace(ToolResult.text(LONG), keep=Keep.TAIL))
    both = await outcome_of(tmp_path, replace(ToolResult.text(LONG), keep=Keep.ENDS))
    assert str(tail.output).startswith("[Cut here. 100 lines, 792 bytes: the end is shown.")
    assert str(tail.output).endswith("\nline 99\nline 100\n")
    assert str(both.output).startswith("line 1\n[Cut here.")
    assert str(both.output).endswith("line 97\nline 98\nline 99\nline 100\n")


async def test_images_are_kept_beside_a_cut_text(tmp_path: Path) -> None:
    image = JsonContentBlock({"type": "image", "data": "A" * 500, "mimeType": "image/png"})
    blob = JsonContentBlock({"type": "resource", "resource": {"uri": "x", "blob": "B" * 500}})
    outcome = await outcome_of(tmp_path, ToolResult((image, TextContentBlock(LONG), blob)))
    assert outcome.content[1:] == (image, blob)
    assert spilled(outcome).read_text(encoding="utf-8") == LONG


async def test_images_are_not_counted(tmp_path: Path) -> None:
    result = ToolResult((JsonContentBlock({"type": "audio", "data": "A" * 500}),))
    assert (await outcome_of(tmp_path, result)).result is result


async def test_long_json_result_is_kept_as_json(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, {"rows": list(range(100))})
    assert str(outcome.output).startswith('{"rows":[0,1,2,')
    assert spilled(outcome).read_text(encoding="utf-8").endswith(",98,99]}")


async def test_several_blocks_are_counted_together(tmp_path: Path) -> None:
    parts = [TextContentBlock("x" * 60), JsonContentBlock({"y": "y" * 60})]
    outcome = await outcome_of(tmp_path, ToolResult(parts))
    assert spilled(outcome).read_text(encoding="utf-8") == "x" * 60 + "\n" + '{"y":"' + "y" * 60 + '"}'


async def test_cut_error_is_still_an_error(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, ToolResult.error(LONG, code="failed"))
    assert outcome.is_error
    assert outcome.details["code"] == "failed"


async def test_unlimited_budget_cuts_nothing(tmp_path: Path) -> None:
    box = box_of(context(tmp_path, UNLIMITED), returning(LONG * 1000))
    assert (await call(box, "probe")).output == LONG * 1000


async def test_result_says_when_the_whole_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blocked").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "blocked"))
    outcome = await outcome_of(tmp_path, LONG)
    assert outcome.details["spill"] is None
    assert "the whole could not be kept: [Errno 17] File exists: " in str(outcome.output)
    assert str(tmp_path / "blocked") in str(outcome.output)


def test_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SessionDir(str(tmp_path / "session"))
    monkeypatch.setattr(spill, "create_private_file", _unwritable)
    with pytest.raises(OSError, match="Bad file descriptor"):
        session.save("probe", "x" * 100_000)
    assert list((tmp_path / "session" / "tool-output").iterdir()) == []


def _unwritable(path: str) -> int:
    """Create the file and give a descriptor that fails when it is written to."""
    Path(path).touch()
    return os.open(path, os.O_RDONLY)


async def test_file_past_its_limit_is_cut_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPILL_LIMIT_BYTES", 300)
    outcome = await outcome_of(tmp_path, LONG)
    assert spilled(outcome).stat().st_size == 300
    assert "The whole (its first 300 bytes) is in" in str(outcome.output)


async def test_lone_surrogate_is_kept_as_an_escape(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, "\ud800" + LONG)
    assert spilled(outcome).read_text(encoding="utf-8").startswith("\\ud800line 1\n")
