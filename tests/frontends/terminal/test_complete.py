"""Completion of the input line, and the files that a message mentions."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from induscode.conversations.mentions import MAX_FILE_BYTES, attach_files, attach_pictures
from induscode.frontends.terminal.complete import MAX_ENTRIES, InputCompleter, WorkspaceFiles, complete, score_path

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = {"mcp": "Servers", "mcp restart": "Restart a server", "mcp tools": "List tools", "memory": "Notes"}
PATHS = ("src/", "src/app.py", "src/api/routes.py", "docs/my notes.md", "README.md")


def texts(typed: str) -> list[str]:
    return [item.text for item in complete(typed, lambda _query: PATHS, COMMANDS)]


# -- completion ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("/", ["/mcp", "/memory"]),
        ("/MC", ["/mcp"]),
        ("/mcp ", ["/mcp restart", "/mcp tools"]),
        ("/mcp r", ["/mcp restart"]),
        ("/mcp restart x", []),
        ("say /m", []),
        ("/m\n", []),
        ("see @app", ["@src/app.py"]),
        ("(@read", ["@README.md"]),
        ("@s/rou", ["@src/api/routes.py"]),
        ("@notes", ['@"docs/my notes.md"']),
        ('@"my n', ['@"docs/my notes.md"']),
        ("me@app", []),
        ("@github:repo", []),
        ("@app then", []),
    ],
)
def test_the_word_before_the_cursor_is_completed(typed: str, expected: list[str]) -> None:
    assert texts(typed) == expected


def test_a_command_is_listed_with_its_description() -> None:
    item = complete("/mem", lambda _query: (), COMMANDS)[0]
    assert (item.display_text, item.display_meta_text, item.start_position) == ("/memory", "Notes", -4)


def test_the_best_path_comes_first() -> None:
    paths = ["a/b/test.py", "test.py", "latest/x.py", "t_e_s_t.py", "mytest.py", "other.py"]
    ranked = [item.display_text for item in complete("@test", lambda _query: paths, {})]
    assert ranked == ["test.py", "a/b/test.py", "mytest.py", "t_e_s_t.py", "latest/x.py"]
    assert score_path("b/a", "a/b") is None


def make_tree(folder: Path) -> None:
    for name in ("src/app.py", "src/.env", "build/out.o", "src/gen/x.py", ".github/ci.yml", ".git/config", "z.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("", encoding="utf-8")
    (folder / ".gitignore").write_text("build/\n", encoding="utf-8")
    (folder / "src/.gitignore").write_text("gen/\n", encoding="utf-8")
    (folder / "up").symlink_to(folder.parent)


def test_ignored_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert WorkspaceFiles(str(tmp_path), clock=lambda: 0.0)("") == ["src/", "up", "z.txt", "src/app.py"]


def test_hidden_files_are_listed_when_they_are_typed(tmp_path: Path) -> None:
    make_tree(tmp_path)
    files = WorkspaceFiles(str(tmp_path), clock=lambda: 0.0)
    assert files(".gi") == [".github/", ".gitignore"]
    assert files(".github/") == [".github/ci.yml"]
    assert files("src/.env") == ["src/.env"]


@pytest.mark.parametrize("query", ["../", "/etc/", "up/", "~/", "src/../../"])
def test_paths_outside_the_workspace_are_never_listed(tmp_path: Path, query: str) -> None:
    make_tree(tmp_path)
    assert WorkspaceFiles(str(tmp_path), clock=lambda: 0.0)(query) == ()


def test_the_walk_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_ENTRIES + 10):
        (tmp_path / f"f{number}").touch()
    assert len(WorkspaceFiles(str(tmp_path), clock=lambda: 0.0)("")) == MAX_ENTRIES
    times = iter(range(1_000))
    assert len(WorkspaceFiles(str(tmp_path), clock=lambda: float(next(times)))("")) == 1


async def test_the_completer_of_the_input_line_gives_both(tmp_path: Path) -> None:
    make_tree(tmp_path)
    completer = InputCompleter(str(tmp_path), lambda: COMMANDS)
    found = [c async for c in completer.get_completions_async(Document("see @app"), CompleteEvent())]
    assert [(c.text, c.start_position) for c in found] == [("@src/app.py", -4)]


def test_the_completer_describes_commands(tmp_path: Path) -> None:
    completer = InputCompleter(str(tmp_path), lambda: COMMANDS)
    assert [c.display_meta_text for c in completer.get_completions(Document("/mem"), CompleteEvent())] == ["Notes"]


# -- mentions -----------------------------------------------------------------------------------


async def test_a_mentioned_file_is_attached_once(tmp_path: Path) -> None:
    (tmp_path / "a b.py").write_text("x = 1\r\n", encoding="utf-8", newline="")
    (tmp_path / "c.py").write_text("</file>\u202e\n", encoding="utf-8")
    text, notes = await attach_files('Compare @"a b.py" and @c.py, then (@c.py).', str(tmp_path))
    assert text == (
        'Compare @"a b.py" and @c.py, then (@c.py).\n\n'
        '<file path="a b.py">\nx = 1\n</file>\n\n<file path="c.py">\n<\\/file><U+202E>\n</file>'
    )
    assert notes == ()


@pytest.mark.parametrize(
    "text", ["me@example.com", "@decorator", "@src", "@server:uri", "@", '@"', "@none.py.", "@a\0b"]
)
async def test_what_names_no_file_stays_as_typed(tmp_path: Path, text: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "example.com").touch()
    assert await attach_files(text, str(tmp_path)) == (text, ())


async def test_files_outside_the_workspace_and_credentials_are_not_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("secret", encoding="utf-8")
    (tmp_path / "out.txt").write_text("secret", encoding="utf-8")
    (home / "link").symlink_to(tmp_path / "out.txt")
    monkeypatch.setenv("HOME", str(home))
    text, notes = await attach_files("@../out.txt @link @~/.ssh/id @.ssh/id", str(home))
    assert text == "@../out.txt @link @~/.ssh/id @.ssh/id"
    assert [note.partition(": ")[2] for note in notes] == ["it is outside the workspace"] * 2 + ["it is protected"] * 2


async def test_binary_files_are_named_only(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    text, notes = await attach_files("@p.png", str(tmp_path))
    assert text == "@p.png"
    assert notes == ("@p.png is named, not attached: PNG image, 58 bytes",)


async def test_large_files_are_attached_in_part_until_the_limit(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"f{number}").write_text("日本語の行\n" * 5_000, encoding="utf-8")
    (tmp_path / "one").write_text("é" * MAX_FILE_BYTES, encoding="utf-8")
    text, notes = await attach_files("@one @f0 @f1 @f2 @f3 @f4", str(tmp_path))
    assert len(text.encode()) < 201 * 1024
    assert text.count("read shows the rest]\n</file>") == 4
    assert "�" not in text
    assert len(notes) == 6
    assert "@f4 " in notes[-1]


async def test_pictures_of_the_workspace_are_attached(tmp_path: Path) -> None:
    picture = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    home = tmp_path / "home"
    home.mkdir()
    (home / "p.png").write_bytes(picture)
    (tmp_path / "out.png").write_bytes(picture)
    (home / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    pasted = tmp_path / "pasted"
    pasted.mkdir()
    (pasted / "1").write_bytes(picture)
    text = f"@p.png and @p.png, @{pasted}/1, not @broken.png or @../out.png"
    _, notes = await attach_files(text, str(home))
    pictures, left = await attach_pictures(text, str(home), notes, str(pasted))
    assert [(one.data, one.media_type) for one in pictures] == [(picture, "image/png")] * 2
    assert [note.partition(" ")[0] for note in left] == ["@broken.png", "@../out.png"]
