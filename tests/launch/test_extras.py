"""Commands that need the extra `agent` name it where it is missing; all others work without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from induscode.commands.program import run
from induscode.launch import options as extras
from induscode.launch.options import MissingExtraError, find_missing_agent, require_agent

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


@pytest.fixture
def without_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "pydantic_ai" else sys.modules["sys"].__spec__

    monkeypatch.setattr(extras, "find_spec", find_spec)


def test_the_complete_extra_is_found() -> None:
    assert find_missing_agent() is None
    require_agent()


@pytest.mark.usefixtures("without_agent")
def test_a_missing_part_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtraError, match=r"no pydantic_ai.*pip install 'indus-deck\[agent\]'"):
        require_agent()


@pytest.mark.usefixtures("without_agent")
@pytest.mark.parametrize("arguments", [["-p", "hello"], ["acp"]])
def test_a_command_with_a_model_ends_with_the_remedy(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 1
    assert "pip install 'indus-deck[agent]'" in capsys.readouterr().err
