"""`indus models`: which providers are ready, where their keys are from, and storing keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import one_line, piped, told
from tests.support.model_server import Reply, model_server
from tests.support.scripts import run

from indusagi.interop.auth.secrets import SecretFiles

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
KEY = "sk-ant-0123456789abcdef"
CLEAN = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "", "OPENAI_BASE_URL": "", "ANTHROPIC_BASE_URL": ""}


def look(cwd: Path, *words: str, **variables: str) -> dict[str, Any]:
    listed = told("models", "--json", *words, cwd=cwd, **{**CLEAN, **variables})
    return {**{row["provider"]: row for row in listed["providers"]}, "used": listed["used"]}


def test_a_key_is_stored_used_and_removed_and_never_shown(tmp_path: Path) -> None:
    done = piped(f"{KEY}\n", "models", "login", "anthropic", cwd=tmp_path)
    assert done.stdout == "The key of anthropic is stored as the secret ANTHROPIC_API_KEY\n"
    assert SecretFiles().read("ANTHROPIC_API_KEY") == KEY
    found = look(tmp_path)
    assert found["anthropic"] == {
        "provider": "anthropic",
        "ready": True,
        "keyFrom": "the stored secret ANTHROPIC_API_KEY",
        "model": "claude-sonnet-4-5",
        "problem": None,
    }
    assert (found["openai"]["ready"], found["openai"]["problem"]) == (False, "no key: indus models login openai")
    assert found["used"] == "anthropic:claude-sonnet-4-5"
    assert look(tmp_path, ANTHROPIC_API_KEY="sk-ant-set")["anthropic"]["keyFrom"] == "the variable ANTHROPIC_API_KEY"
    assert KEY not in json.dumps(found) + done.stdout + done.stderr
    again = run("models", "login", "anthropic", cwd=tmp_path)
    one_line(again, "This isn't a key")
    assert "is removed" in run("models", "logout", "anthropic", cwd=tmp_path).stdout
    assert "No key of anthropic is stored" in run("models", "logout", "anthropic", cwd=tmp_path).stdout


def test_a_key_that_cannot_be_read_is_named_and_another_provider_works(tmp_path: Path) -> None:
    found = look(tmp_path, ANTHROPIC_API_KEY="sk-ant-set", OPENAI_API_KEY="${keyring:gone}")
    assert found["openai"]["keyFrom"] == "${keyring:gone} in the variable OPENAI_API_KEY"
    assert "no secret 'gone' is stored" in found["openai"]["problem"]
    assert found["used"] == "anthropic:claude-sonnet-4-5"


def test_a_provider_is_asked_about_a_key(tmp_path: Path) -> None:
    with model_server() as server:
        keys = {"OPENAI_API_KEY": "sk-good", "OPENAI_BASE_URL": f"{server.url}/v1", "ANTHROPIC_API_KEY": "sk-ant-old"}
        found = look(tmp_path, "--check", **keys, ANTHROPIC_BASE_URL=f"{server.url}/refused")
    assert (found["openai"]["ready"], found["anthropic"]["ready"]) == (True, False)
    assert found["anthropic"]["problem"] == "it answers with HTTP 404"


def test_the_error_for_a_refused_key_names_where_it_is_from(tmp_path: Path) -> None:
    piped("sk-revoked-0123456789\n", "models", "login", "openai", cwd=tmp_path)
    with model_server(Reply(status=401, error="Incorrect API key provided: sk-revoked-0123456789")) as server:
        variables = {**CLEAN, "OPENAI_BASE_URL": f"{server.url}/v1"}
        done = run("-p", "hi", "--model", "openai:m", cwd=tmp_path, **variables)
    assert done.returncode != 0
    assert "check the key, which is from the stored secret OPENAI_API_KEY: indus models" in done.stderr
    assert "sk-revoked" not in done.stdout + done.stderr
