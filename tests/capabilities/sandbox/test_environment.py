"""What a command inherits of our variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.sandbox.backend import QUIET, command_environment
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.core.secrets import is_secret, is_secret_name

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GH_TOKEN", "GITHUB_TOKEN", "API_TOKENS"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "DB_PASSWORD"),
        *("PGPASSWORD", "MYSQL_PWD", "DB_PASS", "SSH_PASSPHRASE", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("MY_CREDS", "client_secret", "npm_config__authToken", "NPM_AUTH", "SENTRY_DSN", "GH_PAT"),
        *("STRIPE_SECRETKEY", "SERVICE_APIKEY", "SESSION_COOKIE", "JWT", "HF_TOKEN"),
    ],
)
def test_r39_secret_is_recognised_by_its_name(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "PWD", "OLDPWD", "LANG", "KEYBOARD", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"),
        *("MONKEY", "TOKENIZERS_PARALLELISM", "PASSAGE", "AUTHOR", "GIT_AUTHOR_NAME", "COMPASS"),
    ],
)
def test_harmless_names_are_not_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value",
    [
        "sk-ant-api03-abcdefghijklmnop",
        "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "AKIAABCDEFGHIJKLMNOP",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.xyz",
        "https://x:ghp_abcdefghijklmnopqrstuvwxyz0123@example.com",
    ],
)
def test_secret_is_recognised_by_its_value(value: str) -> None:
    assert is_secret("HARMLESS", value)


def test_user_can_allow_variables_except_provider_keys() -> None:
    ours = {"MY_TOKEN": "a", "OTHER_TOKEN": "b", "OPENAI_API_KEY": "c", "INDUS_KEY": "d"}
    assert command_environment(ours, ours) == {"MY_TOKEN": "a", "OTHER_TOKEN": "b", **QUIET}
    assert command_environment(ours, {"MY_TOKEN"}) == {"MY_TOKEN": "a", **QUIET}


def test_prompting_and_paging_variables_are_replaced() -> None:
    found = command_environment({"PAGER": "less", "EDITOR": "vim", "TERM": "xterm-256color"})
    assert (found["PAGER"], found["EDITOR"], found["TERM"]) == ("cat", "true", "dumb")
    assert found["GIT_SEQUENCE_EDITOR"] == "false"


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("safe.directory", "*", True),
        ("http.extraHeader", "AUTHORIZATION: basic abc", False),
        ("url.https://x:ghp_abcdefghijklmnopqrstuvwxyz@h/.insteadOf", "https://h/", False),
    ],
)
def test_git_settings_are_kept_completely_or_not_at_all(key: str, value: str, kept: bool) -> None:
    ours = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": key, "GIT_CONFIG_VALUE_0": value}
    assert ("GIT_CONFIG_KEY_0" in command_environment(ours)) is kept
    assert ("GIT_CONFIG_COUNT" in command_environment(ours)) is kept


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_other_variables_are_kept_unchanged(ours: dict[str, str]) -> None:
    found = command_environment(ours)
    for name, value in ours.items():
        if name not in QUIET and not name.startswith("GIT_CONFIG"):
            assert (found.get(name) == value) is not is_secret(name, value)
    assert found.keys() <= ours.keys() | QUIET.keys()


@pytest.mark.anyio
@pytest.mark.process
async def test_shell_passes_allowed_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "mine")
    monkeypatch.setenv("YOUR_TOKEN", "yours")
    shell = LocalShell(str(tmp_path), sandbox=Sandbox(mode="off"), allowed_variables=["MY_TOKEN"])
    result = await shell.exec("echo $MY_TOKEN $YOUR_TOKEN $HOME")
    assert result.output.decode() == f"mine {os.environ['HOME']}\n"
    given_one = await shell.exec("echo $YOUR_TOKEN", env={"YOUR_TOKEN": "given"})
    assert given_one.output == b"given\n"
    await shell.aclose()
