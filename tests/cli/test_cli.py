from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import NAMES, ROOT, command, run, run_on_terminal, unmeasured

from indusagi import __version__
from induscode import __main__ as cli
from induscode.cli import terminal
from induscode.commands import program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def run_session(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `indus` on a terminal without a model, and choose none."""
    return run_on_terminal(*arguments, cwd=cwd, answer=("4  No model", "4"), TERM="xterm", **variables)


@pytest.mark.parametrize("flag", ["--version", "-V"])
@pytest.mark.parametrize("name", NAMES)
def test_three_names_start_one_program(name: str, flag: str) -> None:
    done = run(flag, name=name)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"indus {__version__}\n", "")


def test_the_version_beside_other_options_is_the_same_answer(tmp_path: Path) -> None:
    assert run("--cwd", str(tmp_path), "--version").stdout == f"indus {__version__}\n"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_option(flag: str) -> None:
    done = run(flag)
    assert done.returncode == 0
    for option in ("--version", "--cwd DIRECTORY", "--help"):
        assert option in done.stdout


def test_bare_indus_opens_a_session_in_its_directory_and_names_the_remedy_without_a_model(tmp_path: Path) -> None:
    done = run_session(cwd=tmp_path)
    assert done.returncode == 4
    assert f" · {os.path.realpath(tmp_path)}" in done.stdout
    assert f"indus {__version__}" in done.stdout
    assert "or set ANTHROPIC_API_KEY or OPENAI_API_KEY" in done.stdout


def test_finding_1a1_without_a_terminal_bare_indus_is_one_clear_error(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("indus: There is no terminal: give a prompt (indus -p")
    assert done.stderr.count("\n") == 1


def test_finding_1a1_flags_reach_the_session_and_a_format_without_a_prompt_is_an_error(tmp_path: Path) -> None:
    done = run_session("--mcp", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert "--mcp .: no servers are configured there" in done.stdout
    done = run_session("--output-format", "json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--output-format needs a prompt" in done.stderr


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    done = run_on_terminal(cwd=tmp_path, TERM="dumb")
    assert done.returncode == 4
    assert "failed: no model is set up" in done.stdout
    assert "\x1b" not in done.stdout


def test_another_directory_can_be_given_and_is_shown_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done = run_session("-C", "link", cwd=tmp_path)
    assert f" · {os.path.realpath(tmp_path)}/real\r\n" in done.stdout


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("\n", "\\n"),
        ("\r", "\\r"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
        ("\x85", "\\x85"),
        ("\x1c", "\\x1c"),
        ("\x1b[1A", "\\x1b[1A"),
    ],
)
def test_the_name_of_a_directory_cannot_forge_a_line(tmp_path: Path, end: str, shown: str) -> None:
    name = f"evil{end}indus in "
    (tmp_path / name / "etc").mkdir(parents=True)
    done = run_session("-C", f"{name}/etc", cwd=tmp_path)
    assert f" · {os.path.realpath(tmp_path)}/evil{shown}indus in /etc\r\n" in done.stdout


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [command("python"), "-m", "induscode", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"indus {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frobnicate"], "No such option '--frobnicate'. See"),
        (["--frk"], "No such option '--frk'. Did you mean '--fork'? See"),
        (["-x"], "No such option '-x'. See"),
        (["no-command"], "There is no command 'no-command'. To ask a model: indus -p no-command."),
        (["serv"], "There is no command 'serv'. Did you mean 'serve'?"),
        (["-p", "--base-url", "http://127.0.0.1:9"], '-p needs a prompt before --base-url: indus -p "…" --base-url.'),
        (["-p", "one", "and two"], "-p has a prompt already, so 'and two' is one too many."),
        (["--cwd"], "Option '--cwd' requires an argument. See"),
        (["--cwd", "nowhere"], "'--cwd': 'nowhere': No such file or directory. See"),
        (["--cwd", "file"], "'--cwd': 'file': Not a directory. See"),
        (["--cwd", "loop"], "'--cwd': 'loop': Too many levels of symbolic links. See"),
        (["--cwd", "x" * 5000], "File name too long. See"),
        (["--cwd", ""], "'--cwd': '': No such file or directory. See"),
        (["--\x1b[31mred"], "No such option '--\\x1b[31mred'. See"),
        (["one\x01line"], "There is no command 'one\\x01line'."),
        ([b"\xff\xfe"], "There is no command"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str | bytes], message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.startswith("indus: ")
    # The parser's messages don't have the answer.
    is_parsing = "--" in message.partition(":")[0] and " needs " not in message
    assert done.stderr.endswith(" See 'indus --help'.\n") is (is_parsing or "-x" in message or "name too" in message)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
def test_a_directory_that_cannot_be_read_or_entered_is_bad_input(mode: int) -> None:
    with tempfile.TemporaryDirectory() as closed:
        os.chmod(closed, mode)
        done = _run_as_nobody("--cwd", closed)
        os.chmod(closed, 0o700)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{closed}': Permission denied. See" in done.stderr
    assert done.stderr.count("\n") == 1


def _run_as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run without root's right to enter everything."""
    if os.geteuid() != 0:
        return run(*arguments)
    code = "import os, sys; os.setgid(65534); os.setuid(65534); from induscode.__main__ import main; sys.exit(main())"
    # Imported as root first: the packages themselves may lie in a directory closed to others.
    warm = "import indusagi, induscode.__main__, induscode.commands.program, encodings.unicode_escape; "
    return subprocess.run(
        [command("python"), "-c", warm + code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=unmeasured(),  # nobody may not write the figures
    )


def test_a_working_directory_that_is_gone_is_bad_input(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'rmdir "{gone}" && exec "{command()}"'
    done = subprocess.run(["/bin/sh", "-c", script], cwd=gone, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Invalid value for '-C' / '--cwd': '.': No such file or directory. See" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has an always-full device")
def test_a_full_disk_is_a_failure_told_in_one_line() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([command(), "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "indus: No space left on device\n")


def test_a_file_that_cannot_be_written_is_told_with_its_path(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()  # a file: no directory can be made in it, not by root either
    done = subprocess.run(
        [command(), "mcp", "add", "--no-check", "s", "--", "true"],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"indus: {home}")
    assert "Errno" not in done.stderr


def test_output_that_nobody_has_opened_is_no_failure() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{command()}" --version >&-'], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--version"], ["-C", ".", "--version"], ["--help"], ["-h"]])
def test_a_reader_that_has_left_is_141_and_no_traceback(arguments: list[str]) -> None:
    done = _run_into_nothing(*arguments, stdout=True)
    assert (done.returncode, done.stderr) == (141, "")


def _run_into_nothing(*arguments: str, stdout: bool = False, stderr: bool = False) -> subprocess.CompletedProcess[str]:
    """Run with pipes that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [command(), *arguments],
            stdout=writer if stdout else subprocess.PIPE,
            stderr=writer if stderr else subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("stdout", [False, True])
def test_an_error_whose_reader_has_left_keeps_its_exit_code(stdout: bool) -> None:
    assert _run_into_nothing("--bad", stdout=stdout, stderr=True).returncode == 2


def test_an_error_that_nobody_wants_to_hear_goes_nowhere_and_keeps_its_exit_code() -> None:
    done = subprocess.run(["/bin/sh", "-c", f'"{command()}" --bad 2>&-'], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has an always-full device")
@pytest.mark.parametrize(("script", "code"), [("--bad 2>&1", 2), ("--version 2>&1", 1)])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(script: str, code: int) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(["/bin/sh", "-c", f'"{command()}" {script}'], stdout=full, timeout=60, check=False)
    assert done.returncode == code


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    (tmp_path / "é").mkdir()
    done = run_session(cwd=tmp_path / "é", PYTHONIOENCODING="ascii")
    assert "\\xe9\r\n" in done.stdout


class TestWithinTheProcess:
    """What a process of its own cannot show."""

    def test_an_interrupt_is_130(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(program, "print_status", _interrupted)
        monkeypatch.setattr("sys.argv", ["indus", "--frobnicate"])
        assert cli.main() == 130

    def test_an_interrupt_of_the_fast_path_is_130(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli, "print_line", _interrupted)
        monkeypatch.setattr("sys.argv", ["indus", "--version"])
        assert cli.main() == 130

    def test_what_a_terminal_would_obey_is_shown(self) -> None:
        assert terminal.escape_unprintable("a\x1b]0;x\x07\u202eé") == "a\\x1b]0;x\\x07\\u202eé"

    def test_only_a_newline_ends_a_line_and_nothing_else_reaches_the_terminal(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        terminal.print_line("one\x1b[31m\r\u2028\ntwo\x0b")
        assert capsys.readouterr().out == "one\\x1b[31m\\r\\u2028\ntwo\\x0b\n"


def _interrupted(text: str) -> None:
    raise KeyboardInterrupt


def test_the_root_of_this_clone_is_found() -> None:
    assert (ROOT / "pyproject.toml").exists()


def test_the_first_garbage_collection_is_late_and_the_next_ones_are_as_usual() -> None:
    code = """
import gc
from induscode.__main__ import defer_collection
usual = gc.get_threshold()
defer_collection()
assert gc.get_threshold()[0] > 10 * usual[0], gc.get_threshold()
gc.collect()
assert (gc.get_threshold(), gc.callbacks) == (usual, []), gc.get_threshold()
"""
    subprocess.run([command("python"), "-c", code], timeout=60, check=True, env=unmeasured())


def test_objects_of_the_start_are_spared_by_later_collections() -> None:
    code = """
import gc
from induscode.gateway.run import spare_start_objects
usual = gc.get_threshold()
cycle = []
cycle.append(cycle)
del cycle
spare_start_objects()
assert gc.get_freeze_count() > 1_000
assert gc.get_threshold()[0] > usual[0]
assert gc.collect() == 0
"""
    subprocess.run([command("python"), "-c", code], timeout=60, check=True, env=unmeasured())
