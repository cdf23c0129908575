"""`indus mcp search` and `indus mcp install`, against a mirror on this machine."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import configured, in_sandbox, servers_of, typed, user_file
from tests.registry.mirror import entry, mirror, package
from tests.support.scripts import run
from tests.support.terminal import LineTerminal

from indusagi.interop.auth.secrets import SecretFiles
from induscode.commands import program

if TYPE_CHECKING:
    from pathlib import Path

GIT = entry(
    "org.example/git",
    description="Work with \u202egit.\nSecond line.",
    packages=[package("npm", "@o/git", fileSha256="a" * 64, environmentVariables=[{"name": "LEVEL", "default": "1"}])],
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def use(url: str) -> None:
    path = user_file().parents[1] / "indus" / "settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"registry": {"url": url}}), encoding="utf-8")


def test_words_find_servers_page_by_page_in_name_and_description(capsys: pytest.CaptureFixture[str]) -> None:
    others = [entry(f"org.example/git-{number}", remotes=[{"type": "sse", "url": "https://h"}]) for number in range(4)]
    gone = entry("org.example/git-gone", status="deleted")
    with mirror(GIT, *others, gone, entry("org.example/other")) as (url, seen):
        use(url)
        assert program.run(["mcp", "search", "git"]) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert head.split() == ["NAME", "VERSION", "KINDS", "DESCRIPTION"]
        assert [row.split()[0] for row in rows] == [
            "org.example/git", "org.example/git-0", "org.example/git-1", "org.example/git-2", "org.example/git-3",
        ]  # fmt: skip
        assert "npm" in rows[0]
        assert "Work with git. Second line." in rows[0]
        assert len(seen) == 3
        assert program.run(["mcp", "search", "work", "GIT", "--json", "--limit", "1"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["registry"] == url
        assert [one["name"] for one in found["servers"]] == ["org.example/git"]
        assert program.run(["mcp", "search", "nothing"]) == 0
        assert "No server of" in capsys.readouterr().out


def test_an_installation_is_a_row_with_the_exact_version_and_the_hash(capsys: pytest.CaptureFixture[str]) -> None:
    with mirror(GIT) as (url, seen):
        use(url)
        assert program.run(["mcp", "install", "org.example/git", "--yes", "--no-check"]) == 0
        shown = capsys.readouterr().out
        assert seen == ["/v0.1/servers/org.example%2Fgit/versions/latest"]
    assert "command: npx -y @o/git@1.2.3" in shown
    assert f"the registry's hash {'a' * 64} is not compared" in shown
    origin = {"name": "org.example/git", "version": "1.0.0", "package": "npm:@o/git@1.2.3", "sha256": "a" * 64}
    fields = {"command": "npx", "args": ["-y", "@o/git@1.2.3"], "env": {"LEVEL": "1"}, "registry": origin}
    assert servers_of(user_file()) == {"git": in_sandbox(fields)}
    assert "\n  Sandbox: " in shown


@pytest.mark.process
def test_doctor_says_what_is_verified_about_a_package(tmp_path: Path) -> None:
    origin = {"package": "npm:@o/git@1.2.3", "sha256": "a" * 64}
    configured(user_file(), {"git": {"command": "absent-launcher", "registry": origin}})
    shown = run("mcp", "doctor", "git", cwd=tmp_path).stdout
    assert "package: npm:@o/git@1.2.3 (exact version; npx compares" in shown


def test_without_a_terminal_and_without_yes_nothing_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    with mirror(GIT) as (url, _):
        use(url)
        assert program.run(["mcp", "install", "org.example/git"]) == 1
        shown = capsys.readouterr()
        digest = re.search(r"use --yes --digest ([0-9a-f]{64})\n", shown.err)
        assert digest is not None
        assert f"  digest: {digest[1]}" in shown.out
        words = ["mcp", "install", "org.example/git", "--yes", "--no-check", "--digest"]
        assert program.run([*words, "0" * 64]) == 1
        assert "it has changed since you looked" in capsys.readouterr().err
        assert program.run([*words, digest[1], "--as", "other"]) == 1
        assert not user_file().exists()
        assert program.run([*words, digest[1]]) == 0
        assert servers_of(user_file()).keys() == {"git"}


@pytest.mark.process
@pytest.mark.parametrize(("answer", "added"), [("y\n", True), ("n\n", False)])
def test_a_person_is_asked_after_everything_was_shown(tmp_path: Path, answer: str, added: bool) -> None:
    bare = entry("org.example/bare", packages=[package("pypi", "bare", environmentVariables=[
        {"name": "TOKEN", "isRequired": True}])])  # fmt: skip
    with mirror(bare) as (url, _):
        use(url)
        done = typed(answer, "mcp", "install", "org.example/bare", "--as", "mine", "--keep-plain", cwd=tmp_path)
    question = done.stdout.index("Add it as 'mine'?")
    assert done.stdout.index("command: uvx bare@1.2.3") < question
    assert done.stdout.index("the registry publishes no hash") < question
    assert done.stdout.index("set before it starts: TOKEN") < question
    assert (done.returncode, user_file().exists()) == ((0, True) if added else (1, False))


@pytest.mark.process
def test_the_secrets_that_a_server_needs_are_asked_for_and_stored(tmp_path: Path) -> None:
    needed = [{"name": name, "isRequired": True, "isSecret": True} for name in ("API_TOKEN", "OTHER_TOKEN")]
    bare = entry("org.example/bare", packages=[package("pypi", "bare", environmentVariables=needed)])
    with mirror(bare) as (url, _):
        use(url)
        words = ("mcp", "install", "org.example/bare", "--as", "mine", "--cwd", str(tmp_path))
        with LineTerminal(*words, environ={**os.environ}) as terminal:
            terminal.answer("Add it as 'mine'?", "y\n")
            terminal.answer("API_TOKEN, hidden", "typed-0123456789\n")
            terminal.answer("OTHER_TOKEN, hidden", "\n")
            code, shown = terminal.wait()
    assert (code, "typed-0123456789" in shown) == (0, False)
    row = servers_of(user_file())["mine"]
    assert row["env"] == {"API_TOKEN": "${keyring:mine.API_TOKEN}", "OTHER_TOKEN": "${OTHER_TOKEN}"}
    assert SecretFiles().read("mine.API_TOKEN") == "typed-0123456789"


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (["install", "org.example/absent"], {}, "has no server 'org.example/absent': indus mcp search WORDS"),
        (["install", "org.example/git", "--version", "9"], {}, "has no server 'org.example/git' in version '9'"),
        (
            ["install", "org.example/git", "--version", "9"],
            {"answer": json.dumps(GIT).encode()},
            "'org.example/git' in version '9', and answered with 'org.example/git' in version '1.0.0'",
        ),
        (["install", "org.example/git", "--set", "x"], {}, "write NAME=VALUE"),
        (["install", "org.example/git"], {"answer": b"{}"}, "the server 'org.example/git', and answered with nothing"),
        (["search", "git"], {"answer": b"no JSON"}, "no usable answer"),
        (["search", "git"], {"location": "http://other.example/"}, "has moved to"),
    ],
)
def test_what_goes_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], options: dict[str, Any], said: str
) -> None:
    with mirror(GIT, **options) as (url, _):
        use(url)
        assert program.run(["mcp", *words]) in {1, 2}
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_an_image_that_can_be_exchanged_is_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = package("oci", f"ghcr.io/o/s@sha256:{'b' * 64}", "")
    with mirror(
        entry("org.example/tag", packages=[package("oci", "ghcr.io/o/s", "1.0")]),
        entry("org.example/fixed", packages=[fixed]),
    ) as (url, _):
        use(url)
        words = ["mcp", "install", "--yes", "--no-check"]
        assert program.run([*words, "org.example/tag"]) == 2
        assert "names its image by a tag" in capsys.readouterr().err
        assert not user_file().exists()
        assert program.run([*words, "org.example/tag", "--allow-tag"]) == 0
        assert "another image can take its place" in capsys.readouterr().out
        assert program.run([*words, "org.example/fixed"]) == 0
    assert servers_of(user_file()).keys() == {"tag", "fixed"}


def test_a_registry_that_is_away_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with mirror() as (url, _):
        pass
    use(url)
    assert program.run(["mcp", "search", "git"]) == 1
    assert "the registry cannot be reached" in capsys.readouterr().err
