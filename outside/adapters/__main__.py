"""`python -m outside.adapters`: give a toolbox to every framework, and run the examples.

The frameworks are installed into an environment of their own; each has a real client or agent and a scripted model.
Ends with 0 if all went well, with 1 if something failed, with 2 if nothing could be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from outside.adapters.model import DONE, scripted_model
from outside.install import ROOT, CannotInstall, python_commands
from outside.say import aligned, complain, markdown, say, write_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FRAMEWORKS = {
    "use_openai": ("openai", "Responses"),
    "use_openai_chat": ("openai", "Chat Completions"),
    "use_anthropic": ("anthropic", "Messages"),
    "use_langchain": ("langchain", "Messages"),
    "use_langchain_openai": ("langchain", "Responses"),
    "use_openai_agents": ("openai-agents", "Responses"),
    "use_pydantic_ai": ("pydantic-ai-slim", "Responses"),
    "use_claude_agent": ("claude-agent-sdk", "Messages"),
}
"""The programs, with the package and the API of the model."""
QUESTIONS = ("list", "call", "error", "picture", "denied", "cancel")
_HEAD = ("framework", "version", "model API", *QUESTIONS)
_WIDTHS = (18, 9, 17, *(7 for _ in QUESTIONS))
_RUN_S = 420.0


class _Options(argparse.Namespace):
    only: str


def main(arguments: Sequence[str]) -> int:
    """Judge the frameworks, run the examples, and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.adapters", description=__doc__)
    parser.add_argument("--only", default="", help="only programs and examples whose name holds this")
    options = parser.parse_args(arguments, _Options())
    try:
        python = python_commands("adapters/frameworks") / "python"
    except CannotInstall as exc:
        complain(f"outside.adapters: {exc}")
        return 2
    say(aligned(_HEAD, _WIDTHS))
    rows: list[tuple[str, ...]] = []
    failed = 0
    for program, (package, api) in FRAMEWORKS.items():
        if options.only not in program:
            continue
        problems = _judge(python, program)
        row = (package, _read_version(python, package), api, *("FAILED" if problems[q] else "ok" for q in QUESTIONS))
        rows.append(row)
        say(aligned(row, _WIDTHS))
        for question, problem in problems.items():
            if problem:
                failed += 1
                complain(f"  {question}: {problem}")
    for example in sorted((ROOT / "examples/adapters").glob("*.py")):
        if options.only in example.name:
            problem = _run_example(python, example)
            say(f"{example.name}: {problem or 'ok'}")
            failed += bool(problem)
    if not options.only:
        problem = _check_types(python)
        say(f"types: {problem or 'ok'}")
        failed += bool(problem)
        write_between(ROOT / "docs/evidence/adapters.md", "frameworks", markdown(_HEAD, rows))
    say(f"{failed} failed" if failed else "all ok")
    return 1 if failed else 0


def _judge(python: Path, program: str) -> Mapping[str, str]:
    command = [str(python), "-m", "outside.adapters.driver", program]
    with TemporaryDirectory() as home:
        done = _run(command, home, {})
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return dict.fromkeys(QUESTIONS, "") | {QUESTIONS[0]: done.stderr[-1_000:] or f"exit code {done.returncode}"}


def _run_example(python: Path, example: Path) -> str:
    """Run an example as a user would, who says yes to the call; return what is wrong."""
    with scripted_model() as model, TemporaryDirectory() as home:
        seen = model.expect("notes__add", text="bread")
        keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        urls = {"OPENAI_BASE_URL": f"{model.url}/v1", "ANTHROPIC_BASE_URL": model.url}
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        done = _run([str(python), str(example)], home, {**keys, **urls, **quiet}, "y\n")
    if done.returncode:
        return done.stderr[-1_000:]
    if "notes wants to run add" not in done.stdout or DONE not in done.stdout:
        return f"it printed {done.stdout!r}"
    return "" if "1 note(s)" in seen.text else f"the model saw {seen}"


def _check_types(python: Path) -> str:
    """Check the adapters of the libraries that the other checks do not have."""
    modules = [str(ROOT / f"src/indusagi/adapters/{name}.py") for name in ("langchain", "openai_agents")]
    command = [str(Path(sys.executable).parent / "pyright"), "--pythonpath", str(python), *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_RUN_S, check=False)
    return "" if done.returncode == 0 else done.stdout


def _read_version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def _run(
    command: Sequence[str], home: str, more: Mapping[str, str], given: str = ""
) -> subprocess.CompletedProcess[str]:
    folder = str(Path(command[0]).parent)
    env = {"HOME": home, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **more}
    try:
        return subprocess.run(
            command, cwd=ROOT, env=env, input=given, capture_output=True, text=True, timeout=_RUN_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        return subprocess.CompletedProcess(command, 1, "", f"no end within {_RUN_S:.0f} s: {exc.stderr!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
