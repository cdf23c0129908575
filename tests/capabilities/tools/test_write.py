"""The tool `write`, called as a model calls it."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
import pytest
from tests.support.scripts import unmeasured
from tests.support.tools import box_of, call, context

from indusagi.capabilities.context import Framework
from indusagi.capabilities.files import plan
from indusagi.capabilities.files.replace import MAX_FILE_BYTES
from indusagi.capabilities.tools import change
from indusagi.capabilities.tools.edit import write_tool
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.anyio
MINUS = "\u2212"


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    return context(tmp_path)


def mark_as_read(ctx: ToolContext, path: Path) -> None:
    """Remember a file the way `read` does."""
    state = ctx.framework.read_state
    assert state is not None
    state.record(os.path.realpath(path), hashlib.sha256(path.read_bytes()).hexdigest())


async def write(ctx: ToolContext, path: str, content: str) -> ToolOutcome:
    return await call(box_of(ctx, write_tool()), "write", {"path": path, "content": content})


def text_of(outcome: ToolOutcome) -> str:
    assert isinstance(outcome.output, str)
    return outcome.output


def code(outcome: ToolOutcome) -> object:
    assert outcome.is_error, outcome.output
    return outcome.details["code"]


async def test_a_new_file_is_utf_8_and_gets_its_parent_directories(ctx: ToolContext, tmp_path: Path) -> None:
    outcome = await write(ctx, "a/b/c.txt", "é\nx\n")
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"\xc3\xa9\nx\n"
    assert text_of(outcome) == f"created a/b/c.txt (+2 {MINUS}0, 5 bytes)"
    assert outcome.details["created"] is True
    assert outcome.details["path"] == str(tmp_path / "a/b/c.txt")
    assert outcome.details["diff"] == (
        "diff --git a/a/b/c.txt b/a/b/c.txt\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/a/b/c.txt\n@@ -0,0 +1,2 @@\n+é\n+x\n"
    )


async def test_a_new_file_gets_the_usual_mode(ctx: ToolContext, tmp_path: Path) -> None:
    await write(ctx, "a", "")
    (tmp_path / "usual").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


async def test_a_written_file_counts_as_read(ctx: ToolContext, tmp_path: Path) -> None:
    await write(ctx, "a.txt", "one\n")
    outcome = await write(ctx, "a.txt", "one\ntwo\n")
    assert text_of(outcome) == f"updated a.txt (+1 {MINUS}0, 8 bytes)\n     1\tone\n     2\ttwo"
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "one\ntwo\n"


async def test_probe_0_7_a_file_that_was_never_read_is_not_overwritten(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"precious\nlines\n")
    outcome = await write(ctx, "a.txt", "other")
    assert code(outcome) == "not_read"
    assert "15 bytes" in text_of(outcome)
    assert "     1\tprecious" in text_of(outcome)
    assert (tmp_path / "a.txt").read_bytes() == b"precious\nlines\n"


async def test_a_file_changed_since_it_was_read_is_not_overwritten(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"old\n")
    mark_as_read(ctx, tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"theirs\n")
    outcome = await write(ctx, "a.txt", "ours\n")
    assert code(outcome) == "stale"
    assert "     1\ttheirs" in text_of(outcome)
    assert (tmp_path / "a.txt").read_bytes() == b"theirs\n"


async def test_a_touched_file_is_written(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"old\n")
    mark_as_read(ctx, tmp_path / "a.txt")
    os.utime(tmp_path / "a.txt", (1, 1))
    assert not (await write(ctx, "a.txt", "new\n")).is_error


async def test_without_a_read_state_every_file_may_be_written(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"old\n")
    outcome = await write(replace(ctx, framework=Framework()), "a.txt", "new\n")
    assert not outcome.is_error
    assert (tmp_path / "a.txt").read_bytes() == b"new\n"


async def test_the_same_content_again_changes_nothing(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"same\r\n")
    before = (tmp_path / "a.txt").stat()
    outcome = await write(ctx, "a.txt", "same\n")
    assert text_of(outcome) == "unchanged a.txt: it has this content already"
    assert outcome.details["changed"] is False
    after = (tmp_path / "a.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    # A caller that knows the content of a file has read it.
    assert not (await write(ctx, "a.txt", "other\n")).is_error


@pytest.mark.parametrize(
    ("old", "content", "new"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"a\r\nb\r\n", "x\r\ny\n", b"x\r\ny\n"),
        (b"a\r\nb\n", "x\ny\n", b"x\ny\n"),
        (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n"),
        (b"\xff\xfea\0\r\0\n\0", "x\n", b"\xff\xfex\0\r\0\n\0"),
        ("déjà vu, café\n".encode("latin-1") * 9, "é\n", b"\xe9\n"),
        (b"\x00\x01\xe9\xff\r\n", "→\n", b"\xe2\x86\x92\n"),
        (b"", "é\n", b"\xc3\xa9\n"),
    ],
)
async def test_encoding_and_line_endings_are_kept(
    ctx: ToolContext, tmp_path: Path, old: bytes, content: str, new: bytes
) -> None:
    (tmp_path / "a.txt").write_bytes(old)
    mark_as_read(ctx, tmp_path / "a.txt")
    assert not (await write(ctx, "a.txt", content)).is_error
    assert (tmp_path / "a.txt").read_bytes() == new


async def test_characters_missing_in_the_encoding_are_refused(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("déjà vu, café\n".encode("latin-1") * 9)
    mark_as_read(ctx, tmp_path / "a.txt")
    outcome = await write(ctx, "a.txt", "日本\n")
    assert code(outcome) == "encoding"
    assert code(await write(ctx, "b.txt", "\ud800")) == "encoding"
    assert not (tmp_path / "b.txt").exists()


async def test_finding_d8_mode_links_and_other_names_are_kept(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(b"old\n")
    (tmp_path / "a.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("a.sh")
    mark_as_read(ctx, tmp_path / "a.sh")
    assert text_of(await write(ctx, "link", "new\n")).startswith("updated a.sh ")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "a.sh").stat().st_mode) == 0o755
    os.link(tmp_path / "a.sh", tmp_path / "second")
    await write(ctx, "a.sh", "newer\n")
    assert (tmp_path / "a.sh").read_bytes() == b"newer\n"
    assert (tmp_path / "second").read_bytes() == b"new\n"
    assert stat.S_IMODE((tmp_path / "a.sh").stat().st_mode) == 0o755


async def test_finding_d8_a_hard_link_does_not_lead_out_of_the_workspace(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    workspace.mkdir()
    outside.write_bytes(b"precious\n")
    os.link(outside, workspace / "inside")
    ctx = context(workspace)
    mark_as_read(ctx, workspace / "inside")
    assert text_of(await write(ctx, "inside", "changed\n")).startswith("updated inside ")
    assert (workspace / "inside").read_bytes() == b"changed\n"
    assert outside.read_bytes() == b"precious\n"


async def test_writing_a_dangling_link_creates_its_target(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("there/a")
    await write(ctx, "link", "x")
    assert (tmp_path / "there/a").read_bytes() == b"x"


async def test_an_elision_is_refused(ctx: ToolContext, tmp_path: Path) -> None:
    outcome = await write(ctx, "a.py", "def f():\n    pass\n\n# ... rest of the code unchanged ...\n")
    assert code(outcome) == "omission"
    assert "     4\t# ... rest of the code unchanged ..." in text_of(outcome)
    assert not (tmp_path / "a.py").exists()


async def test_a_syntax_error_is_reported_after_the_write(ctx: ToolContext, tmp_path: Path) -> None:
    outcome = await write(ctx, "a.py", "def f(:\n")
    assert not outcome.is_error
    assert "syntax error that was not there before: line 1" in text_of(outcome)
    assert "line 1" in str(outcome.details["syntaxError"])
    assert (tmp_path / "a.py").read_bytes() == b"def f(:\n"
    assert "syntax" not in text_of(await write(ctx, "a.py", "def f(:\n    x\n"))


async def test_invisible_characters_are_reported(ctx: ToolContext) -> None:
    await write(ctx, "a", "x\n")
    outcome = await write(ctx, "a", "x\u202ey\u200b\n")
    assert "hold 2 characters that cannot be seen" in text_of(outcome)


@pytest.mark.parametrize("name", ["path", "file_path", "filePath"])
async def test_argument_names_of_other_agents_are_accepted(ctx: ToolContext, tmp_path: Path, name: str) -> None:
    box = box_of(ctx, write_tool())
    assert not (await call(box, "write", {name: "a", "contents": "x"})).is_error
    assert (tmp_path / "a").read_bytes() == b"x"


async def test_a_directory_a_pipe_and_a_path_below_a_file_are_refused(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    assert code(await write(ctx, "folder", "x")) == "is_directory"
    with anyio.fail_after(60):
        assert (await write(ctx, "pipe", "x")).is_error
    assert code(await write(ctx, "file/below", "x")) == "not_found"


async def test_a_large_file_or_content_is_refused(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", MAX_FILE_BYTES + 1)
    assert code(await write(ctx, "a", "x")) == "too_large"
    assert code(await write(ctx, "b", "x" * (MAX_FILE_BYTES + 1))) == "too_large"
    assert not (tmp_path / "b").exists()


async def test_a_file_that_grows_while_it_is_read_is_too_large(
    ctx: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    stat_now = await ctx.fs.stat("a")

    async def small(path: str, *, follow: bool = True) -> object:
        return replace(stat_now, size=1)

    monkeypatch.setattr(ctx.fs, "stat", small)
    monkeypatch.setattr(change, "MAX_FILE_BYTES", 3)
    assert code(await write(ctx, "a", "x")) == "too_large"


async def test_a_change_by_another_program_at_the_last_moment_is_kept(
    ctx: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old\n")
    mark_as_read(ctx, path)
    really = plan.format_patch

    def meddling(*args: object, **more: object) -> tuple[bytes, bool]:
        path.write_bytes(b"theirs\n")
        return really(*args, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(plan, "format_patch", meddling)
    assert code(await write(ctx, "a", "ours\n")) == "stale"
    path.unlink()
    assert code(await write(ctx, "a", "ours\n")) == "stale"
    assert path.read_bytes() == b"theirs\n"


async def test_a_long_patch_is_cut_at_the_end_of_a_line(ctx: ToolContext) -> None:
    outcome = await write(ctx, "a", "".join(f"line {n}\n" for n in range(10_000)))
    diff = cast("str", outcome.details["diff"])
    assert outcome.details["diffCut"] is True
    assert 16_000 < len(diff) <= 16 * 1024
    assert diff.endswith("\n")
    assert len(text_of(outcome)) < 200


async def test_a_lock_held_too_long_is_reported(ctx: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    really = change.file_lock
    monkeypatch.setattr(change, "file_lock", partial(really, wait_s=0.05))
    outcomes: list[ToolOutcome] = []

    async def other() -> None:
        outcomes.append(await write(ctx, "a", "x"))

    async with really(await ctx.fs.resolve("a")):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
    assert code(outcomes[0]) == "timeout"
    assert "changing it" in text_of(outcomes[0])


async def test_a_cancelled_call_writes_nothing(ctx: ToolContext, tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel("enough")
    box = box_of(ctx, write_tool())
    outcome = await box.runner.run(ToolCall("1", "write", {"path": "a", "content": "x"}), token)
    assert code(outcome) == "cancelled"
    assert os.listdir(tmp_path) == []


@pytest.mark.process
def test_r55_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    script = f"""
import anyio
from indusagi.capabilities.context import Framework
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.tools import change
from indusagi.capabilities.tools.edit import write_tool

async def main():
    ctx = make_local_context({str(tmp_path)!r}, framework=Framework())
    tool = write_tool()
    n = 0
    while True:
        n += 1
        result = await tool.run({{"path": "a", "content": "%06d\\n" % n * 20000}}, ctx)
        assert not result.is_error, result
        print(n, flush=True)

anyio.run(main)
"""
    (tmp_path / "a").write_bytes(b"000000\n" * 20_000)
    for round_ in range(5):
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=unmeasured())
        assert child.stdout is not None
        with child, child.stdout as output:
            for _ in range(round_ + 1):
                assert output.readline()
            child.send_signal(signal.SIGKILL)
        data = (tmp_path / "a").read_bytes()
        assert data == data[:7] * 20_000
        # What the last one has left is cleared away by the next one, which may leave something too.
        assert len(os.listdir(tmp_path)) <= 2
