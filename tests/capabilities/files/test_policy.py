"""Path policy: the workspace, protected paths and permitted exceptions."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import examples
from tests.support.tools import box_of, call, context, returning

from indusagi.capabilities.budget import OutputBudget
from indusagi.capabilities.files.policy import PathPolicy, PathRequest, ProtectedPaths, workspace_policy
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.ports import PathRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.capabilities.ports import Fs

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class World:
    """A workspace, and what lies beside it."""

    root: Path
    outside: Path
    fs: Fs


@pytest.fixture
def world(tmp_path: Path) -> World:
    root, outside = tmp_path / "proj", tmp_path / "proj-evil"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "x").write_bytes(b"secret" if folder is outside else b"ours")
        (folder / "sub").mkdir()
        (folder / "sub/y").write_bytes(b"secret" if folder is outside else b"ours")
    return World(root, outside, LocalFs(str(root), workspace_policy(str(root))))


READS: dict[str, Callable[[Fs, str], Awaitable[object]]] = {
    "stat": lambda fs, path: fs.stat(path),
    "exists": lambda fs, path: fs.exists(path),
    "read_bytes": lambda fs, path: fs.read_bytes(path),
    "read_text": lambda fs, path: fs.read_text(path),
    "reading": lambda fs, path: fs.reading(path, lambda file: file.read()),
    "readdir": lambda fs, path: fs.readdir(path),
    "folder": lambda fs, path: fs.folder(path),
    "resolve": lambda fs, path: fs.resolve(path),
}
WRITES: dict[str, Callable[[Fs, str], Awaitable[object]]] = {
    "write_file": lambda fs, path: fs.write_file(path, b"evil"),
    "mkdir": lambda fs, path: fs.mkdir(path),
    "resolve": lambda fs, path: fs.resolve(path, writing=True),
}
REMOVE: Callable[[Fs, str], Awaitable[object]] = lambda fs, path: fs.rm(path)  # noqa: E731 — as above
OPERATIONS = [*READS.values(), *WRITES.values()]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


LEADING_OUT: dict[str, Callable[[World], str]] = {
    "c3 a name that begins with the root's": lambda w: f"{w.root}-evil/x",
    "c4 a link to a file": lambda w: link(w, "l", w.outside / "x"),
    "c4 a relative link": lambda w: link(w, "l", "../proj-evil/x"),
    "c4 a chain of three": lambda w: (link(w, "c", w.outside / "x"), link(w, "b", "c"), link(w, "a", "b"))[2],
    "c4 a link to a directory": lambda w: link(w, "d", w.outside) + "/x",
    "c4 a link to a directory, and up again": lambda w: link(w, "d", w.outside / "sub") + "/../x",
    "c4 a link to what does not exist": lambda w: link(w, "l", w.outside / "new"),
    "c4 a directory below such a link": lambda w: link(w, "l", w.outside) + "/new/er",
    "c7 dots": lambda w: "../../.kube/config",
    "dots through a directory": lambda w: "sub/../../proj-evil/x",
    "dots through a missing one": lambda w: "none/../../proj-evil/x",
    "dots behind a link that leads in a circle": lambda w: link(w, "loop", "loop") + "/../../proj-evil/x",
    "an absolute path": lambda w: "/etc/passwd",
    "the root's own directory": lambda w: "..",
    "a magic link to the root": lambda w: link(w, "m", "/proc/self/root") + "/etc/passwd",
    "the file system's root": lambda w: "/",
}


def real(path: Path) -> str:
    return os.path.realpath(path)


def link(world: World, name: str, target: Path | str) -> str:
    (world.root / name).symlink_to(target)
    return name


@pytest.mark.parametrize("way", list(LEADING_OUT.values()), ids=list(LEADING_OUT))
async def test_r43_no_operation_leaves_the_workspace(world: World, way: Callable[[World], str]) -> None:
    path, before = way(world), snapshot(world.outside)
    for operation in OPERATIONS:
        with pytest.raises(PathRefused, match="is outside the workspace") as caught:
            await operation(world.fs, path)
        assert (caught.value.refusal, caught.value.given) == ("outside", path)
        assert caught.value.resolved == real(world.root / path)
    assert snapshot(world.outside) == before


async def test_a_refusal_names_the_target_and_the_remedy(world: World) -> None:
    link(world, "l", world.outside / "x")
    with pytest.raises(PathRefused) as caught:
        await world.fs.write_file("l", b"evil")
    assert caught.value.strerror == (
        f"leads to {world.outside}/x, which is outside the workspace {world.root} and may not be"
        " written. Use a path inside the workspace, or ask the user"
    )
    assert caught.value.filename == "l"
    with pytest.raises(PathRefused) as caught:
        await world.fs.read_bytes(str(world.outside / "x"))
    assert caught.value.strerror == (
        f"is outside the workspace {world.root} and may not be read. Use a path inside the workspace, or ask the user"
    )


async def test_a_refusal_shows_invisible_characters(world: World) -> None:
    link(world, "l", world.outside / "\x1b[2Jx\u202e")
    with pytest.raises(PathRefused, match=f"{world.outside}/x .hidden characters left out., which"):
        await world.fs.read_bytes("l")


async def test_a_link_that_leads_out_can_be_examined_and_removed(world: World) -> None:
    link(world, "l", world.outside / "x")
    assert (await world.fs.stat("l", follow=False)).kind == "symlink"
    await world.fs.rm("l")
    assert not (world.root / "l").is_symlink()
    assert (world.outside / "x").exists()


async def test_nothing_outside_is_examined_or_removed_through_a_link(world: World) -> None:
    link(world, "d", world.outside)
    before = snapshot(world.outside)

    async def look(path: str) -> None:
        await world.fs.stat(path, follow=False)

    for operation in (world.fs.rm, look):
        for path in ("d/x", "../proj-evil/x", str(world.outside / "x"), "..", "d/.."):
            with pytest.raises(PathRefused, match="is outside the workspace"):
                await operation(path)
    assert snapshot(world.outside) == before


async def test_links_inside_the_workspace_work(world: World) -> None:
    link(world, "relative", "sub/y")
    link(world, "absolute", world.root / "sub")
    link(world, "around", f"../{world.root.name}/sub/y")
    for path in ("relative", "absolute/y", "around", "absolute/../sub/y"):
        assert await world.fs.read_bytes(path) == b"ours"
        await world.fs.write_file(path, b"ours")
    assert (world.root / "relative").is_symlink()
    await world.fs.mkdir("absolute/new/er")
    assert (world.root / "sub/new/er").is_dir()
    with await world.fs.folder("absolute") as folder:
        assert folder.path == str(world.root / "sub")


async def test_a_workspace_may_be_a_link(world: World, tmp_path: Path) -> None:
    (tmp_path / "short").symlink_to(world.root)
    fs = LocalFs(str(tmp_path / "short"), workspace_policy(str(tmp_path / "short")))
    assert await fs.read_bytes("x") == b"ours"
    assert await fs.read_bytes(str(world.root / "x")) == b"ours"
    assert await fs.resolve("x") == str(world.root / "x")
    # It does not move with the link.
    (tmp_path / "short").unlink()
    (tmp_path / "short").symlink_to(world.outside)
    with pytest.raises(PathRefused):
        await fs.read_bytes("x")


async def test_several_roots_are_one_workspace(world: World) -> None:
    policy = PathPolicy(roots=(str(world.root), str(world.outside)))
    fs = LocalFs(str(world.root), policy)
    await fs.write_file(str(world.outside / "x"), b"theirs")
    assert await fs.read_bytes("../proj-evil/x") == b"theirs"
    with pytest.raises(PathRefused):
        await fs.readdir("..")


async def test_read_roots_are_not_written(world: World) -> None:
    policy = PathPolicy(roots=(str(world.root),), read_roots=(str(world.outside),))
    fs = LocalFs(str(world.root), policy)
    assert await fs.read_bytes("../proj-evil/x") == b"secret"
    for write in WRITES.values():
        with pytest.raises(PathRefused, match="may not be written"):
            await write(fs, "../proj-evil/x")
    with pytest.raises(PathRefused):
        await fs.rm("../proj-evil/x")


async def test_a_spilled_result_can_be_read(tmp_path: Path) -> None:
    ctx = context(tmp_path, OutputBudget(10, 10))
    box = box_of(ctx, returning("a long answer indeed"))
    spill = (await call(box, "probe")).details["spill"]
    assert isinstance(spill, str)
    assert await ctx.fs.read_text(spill) == "a long answer indeed"
    with pytest.raises(PathRefused):
        await ctx.fs.write_file(spill, b"")
    state = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(spill))))
    for path in (state, f"{state}/trust.json"):
        with pytest.raises(PathRefused):
            await ctx.fs.stat(path)


async def test_the_policy_works_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    ctx = make_local_context(tmp_path)
    await ctx.fs.write_file("a", b"x")
    with pytest.raises(PathRefused, match="protected"):
        await ctx.fs.write_file(".git/config", b"x")


@pytest.mark.parametrize("path", ["/proc/self/mem", "/proc/1/environ", "/sys/kernel", "/dev/zero"])
async def test_r44_proc_sys_and_dev_are_not_read(world: World, path: str) -> None:
    whole = LocalFs("/", workspace_policy("/"))
    link(world, "l", path)
    for fs, way in ((world.fs, path), (world.fs, "l"), (whole, path)):
        for operation in OPERATIONS:
            with pytest.raises(PathRefused, match=r"in /\w+, where there is not a") as caught:
                await operation(fs, way)
            assert caught.value.refusal == "special"


async def test_r44_a_pipe_in_the_workspace_is_refused_with_its_kind(world: World) -> None:
    os.mkfifo(world.root / "pipe")
    for operation in (READS["read_bytes"], READS["reading"], WRITES["write_file"]):
        with pytest.raises(PathRefused, match="not a regular file but a pipe") as caught:
            await operation(world.fs, "pipe")
        assert (caught.value.refusal, caught.value.given) == ("special", "pipe")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no memory disk")
async def test_a_workspace_may_lie_on_a_memory_disk(tmp_path: Path) -> None:
    folder = f"/dev/shm/indus-{os.getpid()}-{tmp_path.name}"
    os.mkdir(folder)
    try:
        fs = LocalFs(folder, workspace_policy(folder))
        await fs.write_file("a", b"x")
        assert await fs.read_bytes("a") == b"x"
        await fs.rm("a")
        with pytest.raises(PathRefused):
            await fs.read_bytes("/dev/zero")
    finally:
        os.rmdir(folder)


GIT_LIKE = [".git", ".GIT", ".Git", ".g\u200cit"]


@pytest.mark.parametrize(
    "path",
    [
        *(f"{name}/hooks/pre-commit" for name in GIT_LIKE),
        *GIT_LIKE,
        "sub/.git/config",
        "deep/er/.git",
        ".indusvx/mcp.json",
        ".indus/settings",
        "sub/.INDUSVX/x",
    ],
)
async def test_c9_protected_files_are_not_created(world: World, path: str) -> None:
    before = snapshot(world.root)
    for operation in (*WRITES.values(), REMOVE):
        with pytest.raises(PathRefused, match="is protected") as caught:
            await operation(world.fs, path)
        assert caught.value.refusal == "protected"
    assert snapshot(world.root) == before


async def test_a_refused_write_names_the_reason_and_the_remedy(world: World) -> None:
    with pytest.raises(PathRefused) as caught:
        await world.fs.write_file(".git/config", b"")
    assert caught.value.strerror == (
        f"leads to {world.root}/.git/config, which is protected (git's own records, which may hold"
        " commands): tools do not write there. Ask the user to make this change"
    )


@pytest.mark.parametrize("path", [".gitignore", ".github/x", "git/x", "x.git/y", ".gitmodules"])
async def test_similar_names_are_not_protected(world: World, path: str) -> None:
    await world.fs.mkdir(os.path.dirname(path) or ".")
    await world.fs.write_file(path, b"x")
    assert (world.root / path).read_bytes() == b"x"


async def test_c5_a_link_to_a_protected_path_is_protected(world: World) -> None:
    (world.root / ".indusvx").mkdir()
    (world.root / ".indusvx/mcp.json").write_bytes(b"{}")
    link(world, "notes.md", ".indusvx/mcp.json")
    with pytest.raises(PathRefused, match=r"leads to \S+mcp.json, which is protected"):
        await world.fs.write_file("notes.md", b"evil")
    assert await world.fs.read_bytes("notes.md") == b"{}"


async def test_the_target_of_a_protected_link_is_protected(world: World) -> None:
    (world.root / "conf").mkdir()
    link(world, ".indusvx", "conf")
    for path in (".indusvx/mcp.json", "conf/mcp.json"):
        with pytest.raises(PathRefused, match="settings or records of this program"):
            await world.fs.write_file(path, b"evil")


async def test_a_workspace_below_a_protected_name_is_writable(tmp_path: Path) -> None:
    root = tmp_path / ".indus/trees/one"
    root.mkdir(parents=True)
    fs = LocalFs(str(root), workspace_policy(str(root)))
    await fs.write_file("a", b"x")
    with pytest.raises(PathRefused, match="protected"):
        await fs.write_file(".git", b"x")


def git(*arguments: str, cwd: Path) -> None:
    settings = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *settings, *arguments], cwd=cwd, check=True, capture_output=True, timeout=60)


@pytest.mark.process
async def test_a_git_directory_is_protected_under_any_name(world: World) -> None:
    git("init", "--separate-git-dir", "records", "apart", cwd=world.root)
    git("commit", "--allow-empty", "-m", "x", cwd=world.root / "apart")
    git("worktree", "add", "../tree", cwd=world.root / "apart")
    git("init", "--bare", "bare", cwd=world.root)
    link(world, "alias", "records")
    for path in (
        "records/hooks/pre-commit",
        "records/config",
        "records/worktrees/tree/gitdir",
        "alias/config",
        "bare/config",
        "tree/.git",
    ):
        with pytest.raises(PathRefused, match="git's own records"):
            await world.fs.write_file(path, b"evil")
    for path in ("apart/file", "tree/file", "sub/file"):
        await world.fs.write_file(path, b"x")


async def test_a_git_directory_named_by_a_git_file_is_protected_before_it_exists(world: World) -> None:
    (world.root / ".git").write_text("gitdir: meta\n", encoding="utf-8")
    with pytest.raises(PathRefused, match="git's own records"):
        await world.fs.mkdir("meta/hooks")
    await world.fs.mkdir("metal")


@pytest.mark.parametrize("content", [b"", b"nothing", b"gitdir: a\0b", b"\xff" * 9000, b"gitdir: ..", b"gitdir: ."])
async def test_a_git_file_without_a_target_protects_only_itself(world: World, content: bytes) -> None:
    (world.root / ".git").write_bytes(content)
    await world.fs.write_file("sub/a", b"x")
    with pytest.raises(PathRefused):
        await world.fs.write_file(".git", b"x")


async def test_a_git_file_that_is_a_pipe_or_unreadable_does_not_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(world.root / ".git")
    await world.fs.write_file("a", b"x")
    assert (world.root / "a").read_bytes() == b"x"
    os.unlink(world.root / ".git")
    (world.root / ".git").write_bytes(b"gitdir: sub")
    os_open = os.open

    def refuse_git_file(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path.endswith("/.git"):
            raise PermissionError(13, "Permission denied")
        return os_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse_git_file)
    await world.fs.write_file("sub/a", b"y")
    assert (world.root / "sub/a").read_bytes() == b"y"


IN_HOME = [
    ".bashrc",
    ".zshenv",
    ".profile",
    ".ssh/authorized_keys",
    ".aws/credentials",
    ".gnupg/x",
    ".config/gcloud/x",
    ".config/fish/config.fish",
    ".netrc",
    ".gitconfig",
    ".BASHRC",
    ".local/state/indus/trust.json",
]


@pytest.mark.parametrize("path", IN_HOME)
async def test_start_up_files_and_credentials_in_the_home_are_not_written(path: str) -> None:
    home = os.environ["HOME"]
    fs = LocalFs(home, workspace_policy(home))
    with pytest.raises(PathRefused, match="is protected"):
        await fs.mkdir(path)
    assert os.listdir(home) == []
    await fs.mkdir("project/.config")
    await fs.write_file("project/.bashrc", b"x")


async def test_the_target_of_a_linked_start_up_file_is_protected() -> None:
    home = Path(os.environ["HOME"])
    (home / "dotfiles").mkdir()
    (home / "dotfiles/bashrc").write_bytes(b"x")
    (home / ".bashrc").symlink_to("dotfiles/bashrc")
    fs = LocalFs(str(home / "dotfiles"), workspace_policy(str(home / "dotfiles")))
    with pytest.raises(PathRefused, match="the shell"):
        await fs.write_file("bashrc", b"evil")
    await fs.write_file("vimrc", b"x")


async def test_the_configuration_directory_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "conf"))
    fs = LocalFs(str(tmp_path), workspace_policy(str(tmp_path)))
    with pytest.raises(PathRefused, match="credentials of the user"):
        await fs.mkdir("conf/gcloud")


async def test_a_path_can_be_permitted(world: World) -> None:
    asked: list[PathRequest] = []

    def permits(request: PathRequest) -> bool:
        asked.append(request)
        return request.resolved == str(world.outside / "x")

    policy = replace(workspace_policy(str(world.root)), permits=permits)
    fs = LocalFs(str(world.root), policy)
    link(world, "l", world.outside / "x")
    assert await fs.read_bytes("l") == b"secret"
    await fs.write_file("l", b"with consent")
    assert (world.outside / "x").read_bytes() == b"with consent"
    with pytest.raises(PathRefused):
        await fs.read_bytes("../proj-evil/sub/y")
    assert asked[0] == PathRequest(given="l", resolved=str(world.outside / "x"), writing=False, refusal="outside")
    with pytest.raises(PathRefused):
        await fs.write_file(".git/config", b"x")
    assert asked[-1].refusal == "protected"


async def test_outside_and_protected_are_permitted_separately(world: World) -> None:
    def permits(request: PathRequest) -> bool:
        return request.refusal == "outside"

    policy = replace(workspace_policy(str(world.root)), permits=permits)
    fs = LocalFs(str(world.root), policy)
    with pytest.raises(PathRefused, match="is protected"):
        await fs.write_file("../proj-evil/.git", b"x")
    home = os.environ["HOME"]
    with pytest.raises(PathRefused, match="is protected"):
        await fs.write_file(f"{home}/.bashrc", b"x")
    await fs.write_file(f"{home}/notes", b"x")


async def test_proc_sys_and_dev_cannot_be_permitted(world: World) -> None:
    def permits(_request: PathRequest) -> bool:
        return True

    policy = replace(workspace_policy(str(world.root)), permits=permits)
    fs = LocalFs(str(world.root), policy)
    await fs.write_file(".git", b"x")
    with pytest.raises(PathRefused):
        await fs.read_bytes("/dev/zero")


async def test_the_workspace_itself_is_not_removed(world: World) -> None:
    for path in (".", str(world.root), "sub/.."):
        with pytest.raises(OSError, match="Invalid argument"):
            await world.fs.rm(path)


def test_nothing_is_protected_by_default() -> None:
    assert ProtectedPaths().find_reason("/w/.git/config", "/w") is None


PARTS = st.sampled_from(["a", "b", "f", "l1", "l2", "..", ".", "none"])
PATHS = st.lists(PARTS, min_size=1, max_size=6).map("/".join)
TARGETS = st.one_of(PATHS, PATHS.map("{top}/".__add__), st.just("{top}/w"), st.just("{top}/w-evil"))


@examples(2)
@given(st.lists(st.tuples(PATHS, TARGETS), max_size=6), st.lists(TARGETS, min_size=1, max_size=6))
async def test_r43_reads_through_any_links_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]], paths: list[str]
) -> None:
    """The judge is the system's own `open`, on the path that `realpath` gives."""
    top = tmp_path_factory.mktemp("top")
    for folder in ("w", "w-evil"):
        for inner in (".", "a", "a/b", "b"):
            (top / folder / inner).mkdir(parents=True, exist_ok=True)
            (top / folder / inner / "f").write_text(folder, encoding="utf-8")
    for place, target in links:
        make_link(top, top / "w" / place, target.format(top=top))
    fs = LocalFs(str(top / "w"), workspace_policy(str(top / "w")))
    for path in (path.format(top=top) for path in paths):
        assert await _outcome(fs, path) == read_inside(top / "w", path)


def make_link(top: Path, link: Path, target: str) -> None:
    """Make a link if its place exists below `top`: elsewhere pytest would have to clean it up, and fails at a loop."""
    if os.path.realpath(link.parent).startswith(str(top)):
        with suppress(OSError):
            link.symlink_to(target)


async def _outcome(fs: Fs, path: str) -> str:
    try:
        return await fs.read_text(path)
    except PathRefused as exc:
        return exc.refusal
    except OSError:
        return "error"


def read_inside(root: Path, path: str) -> str:
    leads_to = os.path.realpath(root / path)
    if os.path.commonpath([leads_to, root]) != str(root):
        return "outside"
    try:
        with open(leads_to, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return "error"


async def test_credentials_in_a_home_workspace_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id_ed25519").write_text("key", encoding="utf-8")
    (home / "kept").mkdir()
    (home / "kept/credentials").write_text("key", encoding="utf-8")
    (home / ".aws").symlink_to("kept")
    (home / "notes").write_text("mine", encoding="utf-8")
    monkeypatch.setenv("HOME", str(home))
    fs = LocalFs(str(home), workspace_policy(str(home)))
    assert await fs.read_text("notes") == "mine"
    for path in (".ssh/id_ed25519", ".ssh", ".aws/credentials", "kept/credentials"):
        with pytest.raises(PathRefused, match="credentials of the user") as caught:
            await fs.stat(path)
        assert caught.value.refusal == "protected"
    project = home / "project"
    project.mkdir()
    assert not [*workspace_policy(str(project)).protected.hidden_below(str(project))]
