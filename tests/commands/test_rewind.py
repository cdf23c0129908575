"""`indus rewind` after headless runs with a scripted model: points, preview, question, conflicts and undo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import one_line, typed
from tests.support.model_server import Reply, calls, model_server, says
from tests.support.scripts import run
from tests.support.sessions import SessionSetup, to_text
from tests.support.worktrees import describe_tree, make_repository, make_tree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.model_server import ModelServer

pytestmark = pytest.mark.process

BOTH = pytest.mark.parametrize("repository", [True, False], ids=["git", "files"])


class Project:
    """A project in which prompts are answered."""

    def __init__(self, folder: Path, server: ModelServer, *, repository: bool) -> None:
        self.setup, self.server = SessionSetup(folder, server), server
        self.cwd = self.setup.cwd
        self.cwd.mkdir()
        make_tree(self.cwd)
        if repository:
            make_repository(self.cwd)

    def ask(self, prompt: str, *script: Reply, **flags: Any) -> None:
        self.server.script[:] = [*script, says("done")]
        done = self.setup.run_process(prompt, sandbox="off", **flags)
        assert done.code == 0, done.err

    def rewind(self, *arguments: str, code: int = 0) -> str:
        done = run("rewind", *arguments, cwd=self.cwd)
        assert done.returncode == code, done
        return done.stdout

    def points(self) -> list[dict[str, Any]]:
        return json.loads(self.rewind("--json"))["points"]


@BOTH
def test_write_edit_and_rm_are_rewound_byte_for_byte_and_the_rewind_is_undone(tmp_path: Path, repository: bool) -> None:
    with model_server() as server:
        project = Project(tmp_path, server, repository=repository)
        former = describe_tree(project.cwd)
        git = describe_tree(project.cwd / ".git")
        project.ask("write a new file", calls("write", path="fresh/new.txt", content="new\n"))
        after_one = describe_tree(project.cwd)
        project.ask(
            "change and remove",
            calls("read", path="keep.txt"),
            calls("edit", path="keep.txt", oldText="keep", newText="changed"),
            calls("bash", command="rm -rf sub && ln -s keep.txt link"),
            continue_last=True,
        )
        after_two = describe_tree(project.cwd)
        assert "sub" not in after_two
        first, second = project.points()
        assert (first["title"], first["files"]) == ("write a new file", ["fresh", "fresh/new.txt"])
        assert {"keep.txt", "sub/binary.bin", "sub/link", "link"} <= set(second["files"])

        preview = project.rewind("--to", "2", "--dry-run")
        assert "keep.txt: restored" in preview
        assert "link: removed" in preview
        assert "  sub/with\\nnewline é: restored\n" in preview
        assert describe_tree(project.cwd) == after_two
        assert "Restored " in project.rewind("--to", "2", "--yes")
        assert describe_tree(project.cwd) == after_one
        project.rewind("--to", "3", "--yes")
        assert describe_tree(project.cwd) == after_two
        project.rewind("--to", "1", "--yes")
        assert describe_tree(project.cwd) == former
        assert describe_tree(project.cwd / ".git") == git


def test_a_model_no_longer_sees_what_was_rewound(tmp_path: Path) -> None:
    with model_server() as server:
        project = Project(tmp_path, server, repository=False)
        project.ask("the first prompt", calls("bash", command="touch one"))
        project.ask("the second prompt", calls("bash", command="touch two"), continue_last=True)
        project.rewind("--to", "2", "--talk", "--yes")
        assert (project.cwd / "two").exists()
        project.ask("the third prompt", continue_last=True)
        told = to_text(server.requests[-1])
        assert "the first prompt" in told
        assert "touch one" in told
        assert "the second prompt" not in told
        assert "touch two" not in told
        assert [point["title"] for point in project.points()] == [
            "the first prompt",
            "rewind (talk) to 2",
            "the third prompt",
        ]


def test_a_file_that_another_program_changed_stays_unless_insisted(tmp_path: Path) -> None:
    with model_server() as server:
        project = Project(tmp_path, server, repository=True)
        project.ask("remove", calls("bash", command="rm sub/crlf.txt; echo ours > keep.txt"))
    (project.cwd / "keep.txt").write_text("theirs", encoding="utf-8")
    assert "--insist keep.txt" in project.rewind("--to", "1", "--dry-run")
    done = run("rewind", "--to", "1", "--yes", cwd=project.cwd)
    assert done.returncode == 1
    assert "keep.txt stays as it is: another program has changed it since" in done.stderr
    assert (project.cwd / "keep.txt").read_text(encoding="utf-8") == "theirs"
    assert (project.cwd / "sub/crlf.txt").read_bytes() == b"one\r\ntwo\nthree\r\n"
    result = json.loads(project.rewind("--to", "1", "--yes", "--insist", "keep.txt", "--json"))
    assert (result["changed"], result["left"]) == (["keep.txt"], [])
    assert (project.cwd / "keep.txt").read_bytes() == b"keep\n"


def test_a_person_is_asked_and_a_program_is_told_the_flag(tmp_path: Path) -> None:
    with model_server() as server:
        project = Project(tmp_path, server, repository=True)
        project.ask("make", calls("bash", command="touch made"))
    done = run("rewind", "--to", "1", cwd=project.cwd)
    assert (done.returncode, "--yes" in done.stderr) == (2, True)
    assert "made: removed" in done.stdout
    no = typed("n\n", "rewind", "--to", "1", cwd=project.cwd)
    assert (no.returncode, (project.cwd / "made").exists()) == (1, True)
    yes = typed("y\n", "rewind", "--to", "1", "--files", cwd=project.cwd)
    assert (yes.returncode, (project.cwd / "made").exists()) == (0, False)


def test_invalid_requests_are_told_in_one_line(tmp_path: Path) -> None:
    one_line(run("rewind", cwd=tmp_path), "there is no conversation")
    one_line(run("rewind", "--conversation", "x", cwd=tmp_path), "there is no conversation 'x'")
    one_line(run("rewind", "--yes", cwd=tmp_path), "need --to N")
    with model_server() as server:
        project = Project(tmp_path, server, repository=False)
        project.ask("hello")
    one_line(run("rewind", "--to", "7", cwd=project.cwd), "no point 7")
    assert "hello" in project.rewind()
