"""`indus models`: nothing is downloaded without a yes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from anyio import to_thread

from induscode.commands import models
from induscode.local_model import server, weights
from induscode.local_model.weights import QWEN_CODER
from induscode.program import run

if TYPE_CHECKING:
    from collections.abc import Callable


def find_nothing(_: str) -> object:
    return None


def find_something(_: str) -> object:
    return object()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have a fetch make a sparse file, and record its name."""
    names: list[str] = []

    async def fetch(model: Any, report: Callable[[int, int], None]) -> None:
        names.append(model.name)
        report(1, 0)
        await to_thread.run_sync(make_weights)

    monkeypatch.setattr(weights, "fetch_weights", fetch)
    return names


def make_weights() -> Path:
    path = Path(QWEN_CODER.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, QWEN_CODER.size)
    return path


def test_a_fetch_without_a_terminal_needs_a_yes(fetched: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "fetch"]) == 2
    assert "no terminal for a question about 1.1 GB: indus models fetch --yes" in capsys.readouterr().err
    assert run(["models", "fetch", "--json"]) == 2
    assert fetched == []


@pytest.mark.parametrize(("answer", "code"), [(False, 1), (True, 0)])
def test_a_person_sees_size_licence_and_place_before_the_question(
    fetched: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bool, code: int
) -> None:
    shown: list[str] = []

    def confirm(question: str) -> bool:
        shown.append(capsys.readouterr().out)
        assert question == "Download it?"
        return answer

    monkeypatch.setattr(models, "can_ask_user", lambda: True)
    monkeypatch.setattr(models, "confirm", confirm)
    assert run(["models", "fetch"]) == code
    for fact in ("licence Apache-2.0", "1.12 GB in 22 wheels", QWEN_CODER.sha256, QWEN_CODER.path, "2 GB"):
        assert fact in shown[0]
    assert fetched == ([QWEN_CODER.name] if answer else [])


def test_a_fetched_model_is_listed_and_removed(
    fetched: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["models"]) == 0
    assert "not fetched (indus models fetch)" in capsys.readouterr().out
    assert run(["models", "fetch", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert "part 1 of 22, 0 of 1,117 MB" in err
    assert "qwen2.5-coder-1.5b: " in out
    monkeypatch.setattr(server, "find_spec", find_nothing)
    assert run(["models", "list", "--json"]) == 0
    row, _encoder = json.loads(capsys.readouterr().out)["models"]
    assert row["state"] == "the engine is missing (pip install 'indus-deck[local]')"
    monkeypatch.setattr(server, "find_spec", find_something)
    digests = [QWEN_CODER.sha256, "another"]

    def read_digest(_path: object) -> str:
        return digests.pop(0)

    monkeypatch.setattr("induscode.local_model.weights._hash_file", read_digest)
    assert run(["models", "fetch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["state"] == "ready"
    assert fetched == [QWEN_CODER.name], "a second fetch finds the file"
    assert run(["models", "fetch", "--yes"]) == 0
    assert "is damaged: it is fetched again" in capsys.readouterr().err
    assert fetched == 2 * [QWEN_CODER.name]
    assert run(["models", "remove"]) == 0
    assert run(["models", "remove", "--json"]) == 0
    assert "qwen2.5-coder-1.5b: removed" in capsys.readouterr().out
    assert not os.path.exists(QWEN_CODER.path)


def test_the_command_has_a_help() -> None:
    assert isinstance(models.command, click.Command)
    assert run(["models", "--help"]) == 0
