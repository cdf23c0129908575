"""What a stranger types first: relative paths, tools that a flag leaves out, the files of the settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands.helpers import project_file, servers_of, user_file
from tests.support.scripts import run

from indusagi.interop.protocol_bridge.client.causes import find_cause
from induscode.commands import program


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    for name in ("server.py", "src/server.py", "mcp-server-git"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("word", "written"),
    [
        (".", "CWD"),
        ("..", "ABOVE"),
        ("./data", "CWD/data"),
        ("../data", "ABOVE/data"),
        ("server.py", "CWD/server.py"),
        ("src/server.py", "CWD/src/server.py"),
        ("--root=./data", "--root=CWD/data"),
        ("--root=.", "--root=CWD"),
        (".:/data:ro", "CWD:/data:ro"),
        ("./data:/data", "CWD/data:/data"),
        ("/data", "/data"),
        ("mcp-server-git", "mcp-server-git"),
        ("@scope/package", "@scope/package"),
        ("src/other.py", "src/other.py"),
        ("...", "..."),
        (".hidden", ".hidden"),
        ("-y", "-y"),
        ("${HOME}/x", "${HOME}/x"),
        ("https://example.org/./x", "https://example.org/./x"),
    ],
)
def test_finding_a11_relative_paths_are_resolved_when_a_server_is_added(
    word: str, written: str, cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run(["mcp", "add", "--no-check", "-C", str(cwd), "s", "--", "cat", word]) == 0
    written = written.replace("CWD", str(cwd)).replace("ABOVE", str(cwd.parent))
    assert servers_of(user_file())["s"]["args"] == [written]
    assert ("is written as" in capsys.readouterr().err) == (word != written)


def test_finding_a11_relative_paths_of_a_project_stay_with_a_warning(
    cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run(["mcp", "add", "--no-check", "-s", "project", "-C", str(cwd), "s", "--", "cat", "."]) == 0
    assert servers_of(project_file(cwd))["s"]["args"] == ["."]
    row = json.dumps({"command": "./run", "args": []})
    assert program.run(["mcp", "add-json", "--no-check", "-C", str(cwd), "t", row]) == 0
    said = capsys.readouterr().err
    for word in (".", "./run"):
        assert f"{word!r} is relative to the directory indus is started in" in said


def test_finding_a15_settings_show_every_file_of_both_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text("{}", encoding="utf-8")
    assert program.run(["settings", "-C", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert program.run(["settings", "--json", "-C", str(tmp_path)]) == 0
    files = {row["holds"]: row for row in json.loads(capsys.readouterr().out)["files"]}
    assert [*files] == ["your settings", "the project's settings", "your servers", "the project's servers"]
    assert [row["state"] for row in files.values()] == ["absent", "absent", "present", "absent"]
    assert files["your servers"]["path"] == str(user_file())
    assert files["your settings"]["path"].endswith("/.config/indus/settings.json")
    assert all(row["path"] in shown for row in files.values())


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["ERROR: validation failed for", "the field token"], "ERROR: validation failed for / the field token"),
        (["could not connect to", "db.example.org"], "could not connect to / db.example.org"),
        (["error: it failed", "more"], "error: it failed"),
    ],
)
def test_finding_a15_cause_that_ends_in_the_middle_has_its_next_line(lines: list[str], cause: str) -> None:
    assert find_cause(lines) == cause


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--tools read call bash command=ls", "--tools leaves out 'bash': name it there too, or drop --tools"),
        ("call --tools read,grep bash command=ls", "--tools leaves out 'bash': name it there too, or drop --tools"),
        ("tools show --tools read bash", "--tools or --no-tools leaves out 'bash': show it without them"),
        ("tools show --no-tools bash", "--tools or --no-tools leaves out 'bash': show it without them"),
    ],
)
def test_finding_se_tool_that_a_flag_leaves_out_is_explained_by_the_flag(
    line: str, reason: str, tmp_path: Path
) -> None:
    done = run(*line.split(), cwd=tmp_path)
    assert (done.returncode, reason in done.stderr, "Did you mean" in done.stderr) == (2, True, False), done
