"""`indus secrets`: values come from a prompt or a pipe, no output has one, and every use is named."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from tests.commands.helpers import configured, user_file

from indusagi.interop.auth import secrets as values
from indusagi.interop.auth.secrets import SecretFiles
from indusagi.interop.auth.storage import KeyringVault
from induscode.commands import secrets
from induscode.commands.program import run
from induscode.launch.settings import user_settings_path

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = "value-that-nobody-sees"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Replace standard input."""

    def use(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return use


def write_project(folder: Path, **env: str) -> None:
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"p": {"command": "x", "env": env}}}), "utf-8")


def test_a_secret_is_piped_in_listed_with_its_uses_and_removed(
    pipe: Callable[[bytes], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    configured(user_file(), {"s": {"command": "x", "env": {"TOKEN": "${keyring:github}"}}})
    pipe(f"{VALUE}\n".encode())
    assert run(["secrets", "set", "github"]) == 0
    assert SecretFiles().read("github") == VALUE
    assert run(["secrets", "list", "-C", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert "refer to it as ${keyring:github}" in captured.out
    assert "stored as plain text that only you can read" in captured.err
    (row,) = json.loads(captured.out.partition("\n")[2])["secrets"]
    assert (row["name"], row["vault"]) == ("github", "plain")
    (use,) = row["usedBy"]
    assert use.startswith("server 's' of")
    assert run(["secrets", "remove", "github", "-C", str(tmp_path)]) == 0
    after = capsys.readouterr()
    assert 'variable "TOKEN" still refers to it' in after.err
    assert VALUE not in captured.out + captured.err + after.out + after.err
    assert run(["secrets", "remove", "github"]) == 2


def test_a_value_in_the_arguments_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["secrets", "set", "github", VALUE]) == 2
    captured = capsys.readouterr()
    assert "The value is never an argument" in captured.err
    assert VALUE not in captured.err + captured.out
    assert not SecretFiles().list_rows()


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe", b"a\0b", b"x" * 100_000])
def test_an_unusable_value_is_refused(
    data: bytes, pipe: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(data)
    assert run(["secrets", "set", "github"]) == 1
    assert len(capsys.readouterr().err) < 200
    assert not SecretFiles().list_rows()


def test_a_value_keeps_its_inner_line_breaks(pipe: Callable[[bytes], None]) -> None:
    pipe(b"one\ntwo\n")
    assert run(["secrets", "set", "pem", "--file"]) == 0
    assert SecretFiles().read("pem") == "one\ntwo"


def test_check_reads_each_reference_and_nothing_without_consent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    SecretFiles().set("github", VALUE)
    loose = tmp_path / "loose"
    loose.write_text(VALUE, "utf-8")
    loose.chmod(0o644)
    configured(
        user_file(),
        {"s": {"command": "x", "env": {"A": "${keyring:github}", "B": "${keyring:gone}", "C": f"${{file:{loose}}}"}}},
    )
    write_project(tmp_path, D=f"${{cmd:touch {tmp_path / 'ran'}}}")
    assert run(["secrets", "check", "-C", str(tmp_path), "--json"]) == 1
    out = capsys.readouterr().out
    rows = {row["reference"]: (row["state"], row["problem"]) for row in json.loads(out)["references"]}
    assert rows.pop("${keyring:github}") == ("ok", None)
    assert rows.pop("${keyring:gone}") == ("problem", "no secret 'gone' is stored: indus secrets set gone")
    state, problem = rows.pop(f"${{file:{loose}}}")
    assert state == "problem"
    assert "it has the mode 0644: chmod 600" in problem
    ((state, problem),) = rows.values()
    assert (state, problem) == ("blocked", "it isn't trusted yet: indus mcp trust p")
    assert not (tmp_path / "ran").exists()
    assert VALUE not in out
    assert run(["secrets", "check", "-C", str(tmp_path)]) == 1
    assert "not read: it isn't trusted yet" in capsys.readouterr().out


def test_check_is_content_without_references(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["secrets", "check", "-C", str(tmp_path)]) == 0
    assert "Nothing refers to a secret." in capsys.readouterr().out


def test_settings_that_hold_secrets_take_references_and_others_do_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = Path(user_settings_path(os.environ))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"approvals.notify": "https://hooks.example/${keyring:hook}"}), "utf-8")
    assert run(["secrets", "check", "-C", str(tmp_path)]) == 1
    assert "setting approvals.notify" in capsys.readouterr().out
    path.write_text(json.dumps({"model.name": "openai:${keyring:hook}"}), "utf-8")
    assert run(["settings", "check", "-C", str(tmp_path)]) == 1
    assert "model.name takes no reference to a secret" in capsys.readouterr().err


def test_a_locked_keyring_is_a_question_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [VALUE, "", "file"]
    asked: list[str] = []

    def ask(question: str, *_: object, **__: object) -> str:
        asked.append(question)
        return answers.pop(0)

    def find_keyring(_: SecretFiles) -> KeyringVault:
        return KeyringVault(None)

    def is_locked(_: KeyringVault, *, unlock: bool = False) -> bool:
        return not unlock  # it opens, and is locked again at once

    monkeypatch.setattr(click, "prompt", ask)
    monkeypatch.setattr(secrets, "can_ask_user", lambda: True)
    monkeypatch.setattr(SecretFiles, "get_keyring", find_keyring)
    monkeypatch.setattr(KeyringVault, "is_locked", is_locked)
    assert run(["secrets", "set", "github"]) == 0
    assert asked == [
        "Value of 'github', hidden",
        *["Unlock it and press Enter, or type 'file' to use a private file"] * 2,
    ]
    captured = capsys.readouterr()
    assert captured.err.count("The keyring is locked.") == 2
    assert "private file" in captured.out
    assert SecretFiles().list_rows()["github"].vault == "plain"


def test_the_names_of_secrets_are_completed() -> None:
    SecretFiles().set("github", VALUE)
    SecretFiles().set("gitlab", VALUE)
    context = click.Context(click.Command("remove"))
    complete = secrets.remove.params[0].shell_complete
    assert [item.value for item in complete(context, "gith")] == ["github"]
    assert values.SECRET_NAME.fullmatch("github")
