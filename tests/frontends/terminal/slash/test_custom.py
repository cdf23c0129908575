"""Slash commands from Markdown files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import says
from tests.support.terminal import open_setup

from induscode.conversations.agents.files import MAX_FILE_BYTES
from induscode.frontends.terminal.slash import SlashError
from induscode.frontends.terminal.slash.prompts import MAX_FILES, expand_arguments, load_custom_commands

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/indus/commands").mkdir(parents=True)
    path = tmp_path / "project/.indusvx/commands"
    path.mkdir(parents=True)
    return path


def load(folder: Path, *taken: str) -> tuple[dict[str, str], str]:
    """Load the commands, and give their descriptions and the notes."""
    commands, notes = load_custom_commands(str(folder.parent.parent), taken)
    return {name: command.describe for name, command in commands.items()}, "\n".join(notes)


def test_front_matter_describes_a_command_and_folders_are_part_of_its_name(folder: Path) -> None:
    (folder / "git").mkdir()
    text = "---\ndescription: 'Write a message'\nargument-hint: [scope]\nmodel: other\n---\nLook at the diff.\n"
    (folder / "git/commit.md").write_text(text)
    (folder / "plain.md").write_text("# First line\nSecond line\n")
    (folder / "notes.txt").write_text("no command")
    described, notes = load(folder)
    assert described == {"plain": "First line (project)", "git:commit": "Write a message (project)"}
    assert notes == ""
    command = load_custom_commands(str(folder.parent.parent), ())[0]["git:commit"]
    assert command.usage == "[scope]"


def test_a_file_replaces_neither_a_command_of_the_session_nor_one_of_the_user(folder: Path) -> None:
    own = folder.parent.parent.parent / "config/indus/commands"
    for place in (own, folder):
        (place / "review.md").write_text("Review.")
        (place / "mcp.md").write_text("Not this one.")
    described, notes = load(folder, "mcp")
    assert described == {"review": "Review. (user)"}
    assert notes.count("left out: /mcp is a command of the session") == 2
    assert f"{folder / 'review.md'}: left out: you have a command /review of your own" in notes


def test_what_leads_out_of_the_directory_or_is_no_small_file_is_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "link.md").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "inside.md").write_text("inside")
    (folder / "alias.md").symlink_to(folder / "inside.md")
    (folder / "large.md").write_text("x" * (MAX_FILE_BYTES + 1))
    (folder / "a b.md").write_text("x")
    os.mkfifo(folder / "pipe.md")
    described, notes = load(folder)
    assert described == {"alias": "inside (project)", "inside": "inside (project)"}
    assert "link.md: left out: it is a link that leads out of the directory" in notes
    assert "large.md: left out: it has 65,537 bytes" in notes
    assert "a b.md: left out: a name has letters" in notes
    assert "pipe.md: left out: not a regular file" in notes


def test_a_directory_of_the_project_that_leads_out_of_it_is_left_out(folder: Path, tmp_path: Path) -> None:
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.md").write_text("a")
    folder.symlink_to(tmp_path / "elsewhere")
    assert load(folder) == ({}, f"{folder}: left out: it leads out of the project")


def test_the_number_of_files_is_limited(folder: Path) -> None:
    for number in range(MAX_FILES + 1):
        (folder / f"c{number:03}.md").write_text("text")
    described, notes = load(folder)
    assert len(described) == MAX_FILES
    assert "more files than" in notes


def test_invisible_characters_are_removed_from_text_and_description(folder: Path) -> None:
    (folder / "a.md").write_text("---\ndescription: see\u202ehidden\x1b[2J\n---\nbo\u200bdy")
    assert load(folder)[0] == {"a": "seehidden (project)"}


@pytest.mark.parametrize(
    ("body", "rest", "expected"),
    [
        ("fix $ARGUMENTS now", "a  b", "fix a  b now"),
        ("$1 and $2, not $10 or $0", "'one word' two", "one word and two, not $10 or $0"),
        ("$1|$9", "", "|"),
        ("$1", "$ARGUMENTS", "$ARGUMENTS"),
        ("no place", "some words", "no place\n\nsome words"),
        ("no place", "", "no place"),
        ("$ARGUMENTS", "it's open", "it's open"),
    ],
)
def test_arguments_are_put_into_the_text_once(body: str, rest: str, expected: str) -> None:
    assert expand_arguments(body, rest) == expected


def test_words_of_an_open_quotation_are_an_error() -> None:
    with pytest.raises(SlashError):
        expand_arguments("$1", "it's open")


@pytest.mark.process
def test_a_command_is_sent_to_the_model_and_read_again_between_turns(tmp_path: Path) -> None:
    with open_setup(tmp_path) as setup:
        folder = setup.cwd / ".indusvx/commands"
        folder.mkdir(parents=True)
        (folder / "mcp.md").write_text("never")
        (folder / "greet.md").write_text("Greet $1.")
        with setup.open(script=(says("hello"), says("farewell")), columns=240) as terminal:
            terminal.wait_for("/mcp is a command of the session")
            terminal.wait_for_prompt()
            terminal.enter("/greet 'the world'")
            terminal.wait_for("hello")
            assert "Greet the world." in setup.requested()
            (folder / "part.md").write_text("Say goodbye.")
            terminal.enter("/part")
            terminal.wait_for("farewell")
            assert "Say goodbye." in setup.requested()
            assert terminal.leave() == 0
