"""The command as a person meets it."""

from __future__ import annotations

import pytest
from tests.interaction.requirements import requirement
from tests.support.scripts import NAMES, run

pytestmark = pytest.mark.process


@requirement("mcp-page/flag/two-binaries")
def test_all_names_of_the_command_behave_alike() -> None:
    for arguments in (["--help"], ["--version"], [], ["--nonsense"]):
        answers = {
            (done.returncode, done.stdout, done.stderr) for done in (run(*arguments, name=name) for name in NAMES)
        }
        assert len(answers) == 1


@requirement("command/bad-input")
@pytest.mark.parametrize("arguments", [["--nonsense"], ["nonsense"], ["--cwd", "/no/such/place"]])
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
