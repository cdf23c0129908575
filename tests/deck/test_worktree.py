"""Snapshots of the work tree: what commands change is found and comes back, and the repository stays untouched."""

from __future__ import annotations

import os
import stat
import subprocess
from random import Random
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.waiting import until
from tests.support.worktrees import describe_tree, make_repository, make_tree, run_git

from indusagi.capabilities.jobs import list_jobs
from indusagi.capabilities.local import make_local_context
from induscode.deck import DeckContext, DeckFramework
from induscode.deck.cards.checkpoint import CommandCheckpointingCard, may_change_files
from induscode.deck.provision import provision_deck
from induscode.deck.stores import git_tree
from induscode.deck.stores import worktree as file_tree
from induscode.deck.stores.checkpoints import FileCheckpoints
from induscode.deck.stores.worktree import WorktreeSnapshots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolResult
    from induscode.deck.contract import Capability
    from induscode.deck.stores.tree import TreeEntry
    from induscode.deck.stores.worktree import Snapshot

pytestmark = [pytest.mark.anyio, pytest.mark.process]

BOTH = pytest.mark.parametrize("repository", [True, False], ids=["git", "files"])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def snapshots(tmp_path: Path, work: Path) -> WorktreeSnapshots:
    return WorktreeSnapshots(tmp_path / "snapshots", work)


def content(snapshots: WorktreeSnapshots, entry: TreeEntry | None) -> bytes:
    assert entry is not None
    return next(image.content for _, image in snapshots.images((entry,)))


def shell(work: Path, command: str) -> None:
    subprocess.run(["bash", "-c", command], cwd=work, check=True, timeout=60)


def relative(work: Path, snapshots: WorktreeSnapshots, before: Snapshot, after: Snapshot) -> list[str]:
    changed, notes = snapshots.changes(before, after)
    assert notes == []
    return [os.path.relpath(change.path, work) for change in changed]


# -- snapshots -----------------------------------------------------------------------------------


@BOTH
def test_every_kind_of_change_is_found_with_what_was_there(
    work: Path, snapshots: WorktreeSnapshots, repository: bool
) -> None:
    make_tree(work)
    if repository:
        make_repository(work)
    before = snapshots.take("n")
    assert before.method == ("git" if repository else "files")
    shell(work, "rm sub/binary.bin; echo 1 >> sub/crlf.txt; chmod 644 sub/private; ln -sf other sub/link; echo x > new")
    after = snapshots.take("n")
    changed, notes = snapshots.changes(before, after)
    found = {os.path.relpath(change.path, work): change for change in changed}
    assert sorted(found) == ["new", "sub/binary.bin", "sub/crlf.txt", "sub/link", "sub/private"]
    assert notes == []
    binary, private, link, new = (found[name] for name in ("sub/binary.bin", "sub/private", "sub/link", "new"))
    assert binary.before is not None
    assert content(snapshots, binary.before) == bytes(range(256)) * 5
    assert binary.after is None
    assert new.before is None
    assert (private.before and private.before.mode, private.after and private.after.mode) == (0o600, 0o644)
    assert link.before is not None
    assert content(snapshots, link.before) == b"crlf.txt"


@BOTH
def test_a_tree_that_did_not_change_gives_no_changes(
    work: Path, snapshots: WorktreeSnapshots, repository: bool
) -> None:
    make_tree(work)
    if repository:
        make_repository(work)
    before = snapshots.take("n")
    for _ in range(3):
        after = snapshots.take("n")
        assert relative(work, snapshots, before, after) == []


def test_a_change_in_the_same_moment_with_the_same_size_is_found(work: Path, snapshots: WorktreeSnapshots) -> None:
    target = work / "a"
    target.write_bytes(b"one")
    for number in range(20):
        before = snapshots.take("n")
        target.write_bytes(b"%03d" % number)
        assert relative(work, snapshots, before, snapshots.take("n")) == ["a"]


def test_the_repository_keeps_its_bytes_and_the_index_its_time(work: Path, snapshots: WorktreeSnapshots) -> None:
    for number in range(2_000):
        folder = work / f"d{number % 40}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_text(str(number), encoding="utf-8")
    make_repository_of(work)
    git, index = describe_tree(work / ".git"), (work / ".git/index").stat()
    before = snapshots.take("n")
    assert (before.method, len(before.id)) == ("git", 40)
    assert sum(1 for entry in before.entries.values() if entry.key) == 2_000
    shell(work, "rm -rf d3; echo changed > d4/f4")
    after = snapshots.take("n")
    assert len(relative(work, snapshots, before, after)) == 52
    assert describe_tree(work / ".git") == git
    assert (work / ".git/index").stat().st_mtime_ns == index.st_mtime_ns
    assert run_git(work, "fsck", "--strict") == ""


def make_repository_of(work: Path) -> None:
    run_git(work, "init", "-q")
    run_git(work, "add", "-A")
    run_git(work, "commit", "-q", "--allow-empty", "-m", "first")


def test_content_that_git_converts_is_kept_byte_for_byte(work: Path, snapshots: WorktreeSnapshots) -> None:
    (work / ".gitattributes").write_text("*.txt text eol=lf\n*.id ident\n", encoding="utf-8")
    (work / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    (work / "b.id").write_bytes(b"$Id: here $\n")
    make_repository_of(work)
    before = snapshots.take("n")
    assert content(snapshots, before.entries["a.txt"]) == b"one\r\ntwo\r\n"
    assert content(snapshots, before.entries["b.id"]) == b"$Id: here $\n"


def test_autocrlf_of_the_repository_does_not_change_what_is_kept(work: Path, snapshots: WorktreeSnapshots) -> None:
    run_git(work, "init", "-q")
    run_git(work, "config", "core.autocrlf", "true")
    (work / "a").write_bytes(b"one\r\ntwo\r\n")
    run_git(work, "add", "-A")
    before = snapshots.take("n")
    assert content(snapshots, before.entries["a"]) == b"one\r\ntwo\r\n"


HOSTILE = """
[core]
    fsmonitor = {program}
    hooksPath = {hooks}
    pager = {program}
    sshCommand = {program}
    untrackedCache = true
[filter "evil"]
    clean = {program}
    smudge = {program}
    process = {program}
    required = true
[diff "evil"]
    textconv = {program}
    command = {program}
[diff]
    external = {program}
[include]
    path = {included}
[remote "origin"]
    url = ext::{program}
    promisor = true
[submodule "inner"]
    update = !{program}
    ignore = none
"""


def test_the_settings_of_a_hostile_repository_run_no_program(
    tmp_path: Path, work: Path, snapshots: WorktreeSnapshots
) -> None:
    make_tree(work)
    inner = work / "inner"
    inner.mkdir()
    (inner / "file").write_bytes(b"inner")
    make_repository_of(inner)
    make_repository(work)
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho \"$0 $@\" >> '{ran}'\ncat\n", encoding="utf-8")
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "pre-commit", "post-checkout", "reference-transaction"):
        (hooks / name).symlink_to(program)
        for repository in (work, inner):
            (repository / ".git/hooks").mkdir(exist_ok=True)
            (repository / ".git/hooks" / name).symlink_to(program)
    included = tmp_path / "included"
    included.write_text(f"[core]\n\tfsmonitor = {program}\n", encoding="utf-8")
    for repository in (work, inner):
        config = repository / ".git/config"
        text = config.read_text(encoding="utf-8")
        hostile = HOSTILE.format(program=program, hooks=hooks, included=included)
        config.write_text(text + hostile, encoding="utf-8")
        (repository / ".gitattributes").write_text("* filter=evil diff=evil\n", encoding="utf-8")
    (work / "git").write_bytes(program.read_bytes())
    (work / "git").chmod(0o755)
    # The oracle: git itself obeys these settings.
    subprocess.run(["git", "status"], cwd=work, capture_output=True, timeout=60, check=False)
    assert ran.exists()
    ran.unlink()
    before = snapshots.take("n")
    shell(work, "rm -rf sub; echo 1 > inner/file; echo 2 > new")
    after = snapshots.take("n")
    changed, _ = snapshots.changes(before, after)
    crlf = next(change for change in changed if change.path.endswith("crlf.txt"))
    assert crlf.before is not None
    assert content(snapshots, crlf.before) == b"one\r\ntwo\nthree\r\n"
    assert not ran.exists()
    assert any("inner" in note for note in after.notes)


def test_ignored_files_are_left_out_and_named(work: Path, snapshots: WorktreeSnapshots) -> None:
    make_tree(work)
    make_repository(work)
    before = snapshots.take("n")
    shell(work, "rm build.log")
    assert relative(work, snapshots, before, snapshots.take("n")) == []
    assert "ignored files" in before.notes[0]


def test_flags_in_the_index_hide_nothing(work: Path, snapshots: WorktreeSnapshots) -> None:
    for name in "abc":
        (work / name).write_text(name, encoding="utf-8")
    make_repository_of(work)
    run_git(work, "update-index", "--assume-unchanged", "a")
    run_git(work, "update-index", "--skip-worktree", "b")
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    before = snapshots.take("n")
    shell(work, "echo changed | tee a b c")
    assert relative(work, snapshots, before, snapshots.take("n")) == ["a", "b", "c"]


def test_a_merge_with_conflicts_and_a_new_repository_are_covered(tmp_path: Path, work: Path) -> None:
    (work / "a").write_text("0\n", encoding="utf-8")
    make_repository_of(work)
    run_git(work, "branch", "other")
    (work / "a").write_text("1\n", encoding="utf-8")
    run_git(work, "commit", "-qam", "one")
    run_git(work, "checkout", "-q", "other")
    (work / "a").write_text("2\n", encoding="utf-8")
    run_git(work, "commit", "-qam", "two")
    subprocess.run(["git", "merge", "-q", "master"], cwd=work, capture_output=True, timeout=60, check=False)
    subprocess.run(["git", "merge", "-q", "main"], cwd=work, capture_output=True, timeout=60, check=False)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    run_git(fresh, "init", "-q")
    (fresh / "a").write_text("0\n", encoding="utf-8")
    for number, folder in enumerate((work, fresh)):
        snapshots = WorktreeSnapshots(tmp_path / f"s{number}", folder)
        before = snapshots.take("n")
        assert before.method == "git"
        shell(folder, "rm a")
        assert relative(folder, snapshots, before, snapshots.take("n")) == ["a"]


def test_a_linked_work_tree_and_a_directory_in_a_repository_are_covered(tmp_path: Path, work: Path) -> None:
    make_tree(work)
    make_repository(work)
    linked = tmp_path / "linked"
    run_git(work, "worktree", "add", "-q", str(linked))
    git = describe_tree(work / ".git")
    for number, folder in enumerate((linked, work / "sub")):
        snapshots = WorktreeSnapshots(tmp_path / f"s{number}", folder)
        before = snapshots.take("n")
        target = folder / ("keep.txt" if number == 0 else "deep/script.sh")
        former = target.read_bytes()
        target.write_bytes(b"changed")
        changed, _ = snapshots.changes(before, snapshots.take("n"))
        assert [change.path for change in changed] == [str(target)]
        assert changed[0].before is not None
        assert content(snapshots, changed[0].before) == former
    assert describe_tree(work / ".git") == git


def test_a_workspace_that_its_repository_ignores_is_copied(tmp_path: Path, work: Path) -> None:
    make_tree(work)
    make_repository(work)
    (work / ".gitignore").write_text("sub\n", encoding="utf-8")
    snapshots = WorktreeSnapshots(tmp_path / "s", work / "sub")
    before = snapshots.take("n")
    assert before.method == "files"
    shell(work, "rm sub/crlf.txt")
    assert relative(work / "sub", snapshots, before, snapshots.take("n")) == ["crlf.txt"]


def test_without_git_files_are_copied_with_a_note(
    work: Path, snapshots: WorktreeSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(work)
    make_repository(work)
    monkeypatch.setenv("PATH", "/nonexistent")
    taken = snapshots.take("n")
    assert (taken.method, "git was not found" in taken.notes[0]) == ("files", True)


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("repository", [True, False])
def test_a_file_past_the_limits_is_named_when_it_changes(
    work: Path, snapshots: WorktreeSnapshots, repository: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (git_tree, file_tree):
        monkeypatch.setattr(module, "LARGEST_FILE", 10)
    if repository:
        run_git(work, "init", "-q")
    (work / "large").write_bytes(b"0" * 11)
    (work / "small").write_bytes(b"0")
    before = snapshots.take("n")
    assert [*before.left_out] == ["large"]
    (work / "large").write_bytes(b"1" * 12)
    (work / "grown").write_bytes(b"2" * 11)
    changed, notes = snapshots.changes(before, snapshots.take("n"))
    assert [(os.path.basename(change.path), change.before, change.is_known) for change in changed] == [
        ("grown", None, False)
    ]
    assert len(notes) == 1
    assert "large was changed and cannot be restored" in notes[0]


def test_a_budget_for_all_files_leaves_some_out(
    work: Path, snapshots: WorktreeSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tree, "CONTENT_BUDGET", 10)
    for name in "abc":
        (work / name).write_bytes(b"0" * 6)
    taken = snapshots.take("n")
    assert ([*taken.entries], [*taken.left_out]) == (["a"], ["b", "c"])
    assert any(note.startswith("b is not covered") for note in taken.notes)


def test_too_many_files_are_not_covered_and_not_scanned_again(
    work: Path, snapshots: WorktreeSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tree, "FILE_LIMIT", 2)
    for name in "abc":
        (work / name).write_bytes(b"")
    taken = snapshots.take("n")
    assert taken.method == "none"
    assert "more than 2 files" in taken.notes[0]
    monkeypatch.setattr(file_tree, "FILE_LIMIT", 20)
    assert snapshots.take("n").method == "none"


@pytest.mark.parametrize(("module", "repository"), [(git_tree, True), (file_tree, False)])
def test_a_scan_that_takes_too_long_is_not_covered(
    work: Path, snapshots: WorktreeSnapshots, monkeypatch: pytest.MonkeyPatch, module: Any, repository: bool
) -> None:
    (work / "a").write_bytes(b"")
    if repository:
        make_repository_of(work)
    monkeypatch.setattr(module, "LIMIT_S", -1.0)
    taken = snapshots.take("n")
    assert taken.method == "none"
    assert "longer than" in taken.notes[0]


def test_a_home_directory_is_not_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    taken = WorktreeSnapshots(tmp_path / "s", tmp_path).take("n")
    assert (taken.method, "not a project" in taken.notes[0]) == ("none", True)
    assert WorktreeSnapshots(tmp_path / "s", "/").take("n").method == "none"


def test_a_file_that_goes_while_the_tree_is_read_is_left_out(
    work: Path, snapshots: WorktreeSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (work / name).write_bytes(b"")
    scan = file_tree.scan_folder

    def scan_late(root: str, relative: str) -> object:
        listed = scan(root, relative)
        (work / "b").unlink(missing_ok=True)
        return listed

    monkeypatch.setattr(file_tree, "scan_folder", scan_late)
    assert [*snapshots.take("n").entries] == ["a", "c"]


def test_directories_of_tools_are_skipped_outside_of_git_and_named(work: Path, snapshots: WorktreeSnapshots) -> None:
    (work / "node_modules/x").mkdir(parents=True)
    (work / "a").write_bytes(b"")
    taken = snapshots.take("n")
    assert [*taken.entries] == ["a"]
    assert "node_modules" in taken.notes[0]


def test_a_failing_git_is_reported_and_tried_again(
    work: Path, snapshots: WorktreeSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a").write_bytes(b"")
    make_repository_of(work)
    with monkeypatch.context() as patch:
        patch.setattr(git_tree, "_SETTINGS", {"core.bare": "nonsense"})
        taken = snapshots.take("n")
    assert taken.method == "none"
    assert "git" in taken.notes[0]
    assert snapshots.take("n").method == "git"


# -- commands ------------------------------------------------------------------------------------


@pytest.fixture
async def ctx(tmp_path: Path, work: Path) -> AsyncIterator[ToolContext]:
    async with make_local_context(work) as context:
        yield context


@pytest.fixture
def store(tmp_path: Path, work: Path) -> Iterator[FileCheckpoints]:
    made = FileCheckpoints(tmp_path / "checkpoints", work)
    yield made
    made.close()


def card(name: str, work: Path, store: object) -> Capability:
    deck = provision_deck("all", DeckContext(str(work), DeckFramework(checkpoint=store), "off"))  # type: ignore[arg-type]
    return next(card for card in deck.tools() if card.name == name)


async def run_bash(work: Path, store: object, ctx: ToolContext, command: str) -> ToolResult:
    return await card("bash", work, store).run({"command": command}, ctx)


async def blocking(work: Callable[..., Any], *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(work, *arguments)


@BOTH
async def test_rm_and_everything_else_of_a_command_comes_back_byte_for_byte(
    work: Path, store: FileCheckpoints, ctx: ToolContext, repository: bool
) -> None:
    await blocking(make_tree, work)
    if repository:
        await blocking(make_repository, work)
        await blocking((work / "build.log").unlink)
    former = await blocking(describe_tree, work)
    await blocking(store.begin, "one")
    result = await run_bash(work, store, ctx, "rm -rf sub && mkdir -p made/up && echo x > made/up/file && echo y > sub")
    assert not result.is_error, result
    assert "notCheckpointed" not in result.details
    assert str(work / "made/up/file") in str(result.details["changedFiles"])
    changed = await blocking(describe_tree, work)
    assert changed != former
    steps = await store.preview("one", ctx.fs)
    assert not any(step.conflict for step in steps)
    done = await store.restore("one", ctx.fs)
    assert done.left == ()
    assert await blocking(describe_tree, work) == former
    undone = await store.restore(done.safety, ctx.fs)
    assert undone.left == ()
    assert await blocking(describe_tree, work) == changed
    await store.restore(undone.safety, ctx.fs)
    assert await blocking(describe_tree, work) == former


@BOTH
async def test_one_restore_covers_write_edit_and_commands(
    work: Path, store: FileCheckpoints, ctx: ToolContext, repository: bool
) -> None:
    await blocking(make_tree, work)
    if repository:
        await blocking(make_repository, work)
    former = await blocking(describe_tree, work)
    await blocking(store.begin, "one")
    await card("read", work, store).run({"path": "keep.txt"}, ctx)
    calls: list[tuple[str, JsonObject]] = [
        ("edit", {"path": "keep.txt", "oldText": "keep", "newText": "edited"}),
        ("write", {"path": "fresh/dir/new.txt", "content": "new"}),
        (
            "bash",
            {"command": "chmod 755 keep.txt; sed -i s/edited/again/ keep.txt; rm fresh/dir/new.txt sub/binary.bin"},
        ),
    ]
    for name, arguments in calls:
        result = await card(name, work, store).run(arguments, ctx)
        assert not result.is_error, result
    assert (await store.restore("one", ctx.fs)).left == ()
    assert await blocking(describe_tree, work) == former


@BOTH
async def test_what_another_program_changed_meanwhile_stays(
    work: Path, store: FileCheckpoints, ctx: ToolContext, repository: bool
) -> None:
    await blocking(make_tree, work)
    if repository:
        await blocking(make_repository, work)
    await blocking(store.begin, "one")
    await run_bash(work, store, ctx, "echo ours > keep.txt; rm sub/crlf.txt")
    (work / "between").write_text("theirs", encoding="utf-8")
    (work / "sub/crlf.txt").write_text("theirs", encoding="utf-8")
    await run_bash(work, store, ctx, "touch done; true > sub/private")
    result = await store.restore("one", ctx.fs)
    assert [path for path, _ in result.left] == [str(work / "sub/crlf.txt")]
    assert (work / "sub/crlf.txt").read_text(encoding="utf-8") == "theirs"
    assert (work / "between").read_text(encoding="utf-8") == "theirs"
    assert (work / "keep.txt").read_text(encoding="utf-8") == "keep\n"
    assert (work / "sub/private").read_bytes() == b"secret"
    forced = await store.restore("one", ctx.fs, insist={str(work / "sub/crlf.txt")})
    assert forced.left == ()
    assert (work / "sub/crlf.txt").read_bytes() == b"one\r\ntwo\nthree\r\n"


async def test_a_mode_and_a_file_that_cannot_be_written_come_back(
    work: Path, store: FileCheckpoints, ctx: ToolContext
) -> None:
    (work / "a").write_text("one", encoding="utf-8")
    (work / "a").chmod(0o444)
    await blocking(store.begin, "one")
    await run_bash(work, store, ctx, "rm -f a; echo two > a; chmod 400 a")
    await store.restore("one", ctx.fs)
    assert (work / "a").read_text(encoding="utf-8") == "one"
    assert stat.S_IMODE((work / "a").stat().st_mode) == 0o444


async def test_a_directory_with_other_files_in_it_stays(work: Path, store: FileCheckpoints, ctx: ToolContext) -> None:
    await blocking(store.begin, "one")
    await run_bash(work, store, ctx, "mkdir made; echo x > made/ours")
    (work / "made/theirs").write_text("theirs", encoding="utf-8")
    result = await store.restore("one", ctx.fs)
    assert result.left == ()
    assert sorted(os.listdir(work / "made")) == ["theirs"]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["bash", "process", "bg-process"])
async def test_finding_p6_what_a_job_changes_is_restored(
    work: Path, store: FileCheckpoints, ctx: ToolContext, name: str
) -> None:
    """A job changes files at once, across the next prompt, and while nothing else happens."""
    (work / "a").write_text("before", encoding="utf-8")
    await blocking(store.begin, "one")
    script = "for step in 1 2 3; do until [ -e go$step ]; do sleep 0.01; done; echo $step > a; touch did$step; done"
    call: JsonObject = {"command": f"echo 0 > a; touch did0; {script}; exec sleep 600"}
    more: JsonObject = {"background": True} if name == "bash" else {"action": "start"}
    result = await card(name, work, store).run({**call, **more}, ctx)
    assert not result.is_error, result
    assert "notCheckpointed" not in result.details

    async def step(number: int) -> None:
        (work / f"go{number}").touch()
        await until(lambda: (work / f"did{number}").exists())

    await until(lambda: (work / "did0").exists())
    await step(1)
    await blocking(store.begin, "two")
    await step(2)
    await blocking(store.begin, "three")
    await step(3)
    assert [*await blocking(store.notes_since, "one")] == []
    for node, content in (("three", "2\n"), ("two", "1\n"), ("one", "before")):
        result = await store.restore(node, ctx.fs)
        assert result.left == ()
        assert read(work / "a") == content


async def test_finding_p6_what_a_command_changes_across_the_next_prompt_is_restored(
    work: Path, store: FileCheckpoints, ctx: ToolContext
) -> None:
    (work / "a").write_text("before", encoding="utf-8")
    await blocking(store.begin, "one")
    async with anyio.create_task_group() as group:
        group.start_soon(run_bash, work, store, ctx, "until [ -e go ]; do sleep 0.01; done; echo after > a")
        await until(lambda: bool(store._running))
        await blocking(store.begin, "two")
        (work / "go").touch()
    assert read(work / "a") == "after\n"
    assert str(work / "a") in await blocking(store.changed_paths, "two")
    for node in ("two", "one"):
        assert any(step.path == str(work / "a") for step in await store.preview(node, ctx.fs))
    await store.restore("one", ctx.fs)
    assert read(work / "a") == "before"


async def test_a_job_that_has_ended_is_followed_no_longer(work: Path, store: FileCheckpoints, ctx: ToolContext) -> None:
    await blocking(store.begin, "one")
    await card("process", work, store).run({"action": "start", "command": "touch made"}, ctx)
    await until(lambda: all(job.process.exit_code is not None for job in list_jobs(ctx)))
    await blocking(store.begin, "two")
    (work / "mine").touch()  # by the user
    await blocking(store.begin, "three")
    assert await blocking(store.changed_paths, "one") == [str(work / "made")]
    assert await blocking(store.changed_paths, "two") == []


async def test_a_job_of_a_store_that_does_not_follow_is_named_as_not_covered(work: Path, ctx: ToolContext) -> None:
    class Plain(Broken):
        def end_command(self, before: object) -> tuple[list[str], list[str]]:
            return [], []

    result = await card("process", work, Plain("")).run({"action": "start", "command": "exec sleep 60"}, ctx)
    assert "runs on" in str(result.details["notCheckpointed"])


async def test_finding_p7_a_point_without_a_record_is_an_error(store: FileCheckpoints, ctx: ToolContext) -> None:
    await blocking(store.begin, "one")
    for attempt in (store.preview, store.restore):
        with pytest.raises(FileNotFoundError, match="can't return to it"):
            await attempt("another", ctx.fs)
    assert await blocking(store.changed_paths, "another") == []


@pytest.mark.parametrize("insist", [False, True])
async def test_finding_p11_a_file_that_cannot_be_kept_is_never_overwritten(
    work: Path, store: FileCheckpoints, ctx: ToolContext, insist: bool
) -> None:
    path = work / "a"
    path.write_text("before", encoding="utf-8")
    await blocking(store.begin, "one")
    await run_bash(work, store, ctx, "echo small > a")
    os.truncate(path, 129 * 1024 * 1024)  # a hole, larger than anything that is recorded
    result = await store.restore("one", ctx.fs, insist={str(path)} if insist else ())
    assert path.stat().st_size == 129 * 1024 * 1024
    ((left, why),) = result.left
    assert left == str(path)
    assert "Move it away first" in why
    path.unlink()
    await store.restore("one", ctx.fs, insist={str(path)})
    assert read(path) == "before"


class Broken:
    """A store that cannot record commands."""

    def __init__(self, fails: str) -> None:
        self.fails = fails

    def record(self, path: str, previous: bytes | None) -> None:
        """Record nothing."""

    def begin_command(self) -> object:
        if self.fails == "begin":
            raise OSError("the disk is full")
        return object()

    def end_command(self, before: object) -> tuple[list[str], list[str]]:
        raise OSError("the disk is full")

    def add_note(self, text: str) -> None:
        """Record nothing."""


@pytest.mark.parametrize("fails", ["begin", "end"])
async def test_a_failing_store_never_prevents_a_command(work: Path, ctx: ToolContext, fails: str) -> None:
    result = await run_bash(work, Broken(fails), ctx, "echo x > a")
    assert not result.is_error
    assert (work / "a").exists()
    assert "the disk is full" in str(result.details["notCheckpointed"])


async def test_a_cancelled_command_is_recorded_too(work: Path, store: FileCheckpoints, ctx: ToolContext) -> None:
    await blocking(store.begin, "one")

    class Cancelled:
        name = label = description = "bash"
        parameters = None
        read_only = False

        async def run(self, arguments: object, ctx: object) -> ToolResult:
            await anyio.Path(work / "a").write_text("x", encoding="utf-8")
            scope.cancel()
            await anyio.sleep(60)
            raise AssertionError

    with anyio.CancelScope() as scope:
        await CommandCheckpointingCard(Cancelled(), store).run({"command": "make"}, ctx)  # type: ignore[arg-type]
    assert scope.cancelled_caught
    assert await blocking(store.changed_paths, "one") == [str(work / "a")]
    assert await blocking(store.notes_since, "one") == []


async def test_a_command_that_ended_with_the_program_is_named(work: Path, tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path / "killed", work)
    await blocking(store.begin, "one")
    await blocking(store.begin_command)
    assert await blocking(store.notes_since, "one") == []
    later = FileCheckpoints(tmp_path / "killed")
    (note,) = await blocking(later.notes_since, "one")
    await blocking(later.close)
    await blocking(store.close)
    assert "interrupted" in note


async def test_content_that_left_with_the_repository_is_named(
    work: Path, store: FileCheckpoints, ctx: ToolContext
) -> None:
    await blocking(make_tree, work)
    await blocking(make_repository, work)
    await blocking(store.begin, "one")
    result = await run_bash(work, store, ctx, "rm -rf .git keep.txt sub/untracked")
    assert "keep.txt was changed and cannot be restored" in str(result.details["notCheckpointed"])
    restored = await store.restore("one", ctx.fs)
    assert [os.path.basename(path) for path in restored.done] == ["untracked"]


@pytest.mark.parametrize("command", ["ls -la", "cat a 'b c'", "pwd", "grep -n x a", "echo hello", " head -5 a "])
def test_commands_that_only_read_take_no_snapshot(command: str) -> None:
    assert not may_change_files("bash", {"command": command})


@pytest.mark.parametrize(
    "command",
    ["rm a", "cat a > b", "echo $(rm a)", "ls; rm a", "cat `rm a`", "ls\nrm a", 'echo "$(rm a)"', "sed -i s/a/b/ c"],
)
def test_every_other_command_takes_one(command: str) -> None:
    assert may_change_files("bash", {"cmd": command})
    assert may_change_files("process", {"action": "start", "command": command})
    assert not may_change_files("process", {"action": "poll", "command": command})


def test_a_store_without_commands_leaves_the_card_as_it_is(work: Path) -> None:
    class Plain:
        def record(self, path: str, previous: bytes | None) -> None:
            """Record nothing."""

    assert not isinstance(card("bash", work, Plain()), CommandCheckpointingCard)


# -- random changes --------------------------------------------------------------------------------

NAMES = ("a", "b", "c.txt", "d")


def change_at_random(random: Random, work: Path) -> None:
    """Make, change, move or remove something at a random place."""
    path = work.joinpath(*random.choices(NAMES, k=random.randint(1, 3)))
    try:
        action = random.choice(("write", "write", "mkdir", "link", "chmod", "move", "remove", "remove"))
        if action == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(random.randbytes(random.choice((0, 1, 40))))
        elif action == "mkdir":
            path.mkdir(parents=True)
        elif action == "link":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(random.choice(("a", "../b", "nowhere")))
        elif action == "chmod":
            path.chmod(random.choice((0o600, 0o644, 0o755, 0o700)), follow_symlinks=path.is_symlink() is False)
        elif action == "move":
            path.rename(work.joinpath(*random.choices(NAMES, k=random.randint(1, 3))))
        elif path.is_dir() and not path.is_symlink():
            rmtree(path)
        else:
            path.unlink()
    except (OSError, NotImplementedError):
        return  # it is absent, or something else stands there


@BOTH
@pytest.mark.parametrize("seed", range(5))
async def test_random_changes_are_restored_to_every_node(
    work: Path, store: FileCheckpoints, ctx: ToolContext, repository: bool, seed: int
) -> None:
    random = Random(seed)

    def make_nodes() -> list[dict[str, tuple[int, bytes]]]:
        for _ in range(8):
            change_at_random(random, work)
        if repository:
            make_repository_of(work)
        states: list[dict[str, tuple[int, bytes]]] = []
        for number in range(4):
            states.append(describe_tree(work))
            store.begin(f"node-{number}")
            for _ in range(2):
                before = store.begin_command()
                assert before is not None
                for _ in range(random.randint(1, 6)):
                    change_at_random(random, work)
                store.end_command(before)
        return states

    states = await blocking(make_nodes)
    final = await blocking(describe_tree, work)
    safety = ""
    for number in (3, 1, 0):
        result = await store.restore(f"node-{number}", ctx.fs)
        safety = safety or result.safety
        assert result.left == ()
        assert await blocking(describe_tree, work) == states[number]
    undone = await store.restore(safety, ctx.fs)
    assert undone.left == ()
    assert await blocking(describe_tree, work) == final
