"""What a real small model does with the deck: seven kinds of tasks, each in several wordings, with a table of results.

    python -m outside.local_model [--tries N] [--all-tools] [--task NAME] [--weights FILE] [--json FILE]

`make demo-llm` installs llama.cpp and fetches the weights first; `--weights` takes a GGUF file instead. One server
answers every try: the system prompt and the tools of a task are read once. Each try is a new conversation in the same
directory, with the two tools that the task needs (`--tools`), or with all that the context window has room for and one
MCP server (`--all-tools`). A person who says yes once to every question is simulated; everything else is what
`indus -p` does with a model at `--base-url`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from indusagi.core.cancel import CancelToken
from indusagi.core.process.tree import read_cpu_demand
from induscode.addons.loader import AddonConsentStore
from induscode.addons.skills import SKILL_FILE, read_skill
from induscode.cli.dialog import Reply
from induscode.conversations.contract import RequestBudget, ToolAnswered, ToolCalled
from induscode.conversations.models import OWN_KEY
from induscode.conversations.opening import open_conversation
from induscode.launch.invocation import Invocation
from induscode.search.weights import WeightsError
from outside.engine import host
from outside.engine.model import QWEN_CODER
from outside.engine.server import LocalWeights, open_local_server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from indusagi.core.json import JsonValue
    from induscode.cli.dialog import Question
    from induscode.conversations.contract import RunEvent

DIARY_SERVER = Path(__file__).resolve().parent.parent / "examples" / "notes_server.py"
FILES = {
    "release.txt": "Release 4.2\nThe release manager is Ada Lovelace.\nThe server listens on port 8347.\n",
    "src/config.py": "TIMEOUT = 30\nRETRIES = 3\n",
    "src/net.py": "def connect(host):\n    # FIXME: retry\n    return host\n",
    "src/store.py": "def save(row):\n    return row\n",
    "test_config.py": """\
import unittest

from src.config import RETRIES, TIMEOUT


class ConfigTests(unittest.TestCase):
    def test_retries(self):
        self.assertEqual(RETRIES, 3)

    def test_timeout(self):
        self.assertEqual(TIMEOUT, 45)


unittest.main()
""",
}
SKILL, SKILL_TEXT = (
    ".agents/skills/release-note",
    """\
---
description: How to write a release note in this project. Read it before you write one.
---
A release note begins with the word NOTE-88. Then it says what is new.
""",
)
FACTS = {
    "Who is the release manager in release.txt?": "Lovelace",
    "Read release.txt and tell me the port of the server.": "8347",
    "Which release is release.txt about?": "4.2",
    "What is the value of RETRIES in src/config.py?": "3",
    "Look into release.txt: who manages the release?": "Lovelace",
    "Have a sub-agent find out who the release manager is in release.txt.": "Lovelace",
    "Use task to find the port of the server in release.txt.": "8347",
    "Start a task: explore reads release.txt and names the release manager.": "Lovelace",
    "Let the agent explore find the value of RETRIES in src/config.py.": "3",
    "Give a task to explore: which release is release.txt about?": "4.2",
}
"""What the answer to a question must contain."""
REQUESTS = 8
LIMIT_S = 900.0
"""Time for one try on a busy machine."""


@dataclass
class Attempt:
    """One try: what was asked, called and answered."""

    task: str
    prompt: str
    calls: list[str] = field(default_factory=list[str])
    arguments: list[JsonValue] = field(default_factory=list["JsonValue"])
    failed: int = 0
    errors: list[str] = field(default_factory=list[str])
    questions: list[str] = field(default_factory=list[str])
    answer: str = ""
    end: str = ""
    seconds: float = 0.0
    engine_seconds: float = 0.0
    """CPU time of the engine: with one thread, about the seconds on a machine that does nothing else."""
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    success: bool = False


@dataclass(frozen=True)
class Task:
    """A kind of task: wordings, and how success is told."""

    name: str
    tools: tuple[str, ...]
    """Native tools that the model is given."""
    prompts: Sequence[str]
    """Wordings; each line is a turn."""
    check: Callable[[Attempt, Path], bool]
    has_server: bool = False
    has_skill: bool = False


def _has_edited(attempt: Attempt, folder: Path) -> bool:
    text = (folder / "src/config.py").read_text()
    return text == FILES["src/config.py"].replace("30", "60") and bool(attempt.questions)


def _has_noted(attempt: Attempt, _: Path) -> bool:
    return "diary__add" in attempt.calls and attempt.failed < attempt.calls.count("diary__add")


TASKS = (
    Task(
        "read",
        ("read", "ls"),
        tuple(FACTS)[:5],
        lambda attempt, _: "read" in attempt.calls and FACTS[attempt.prompt] in attempt.answer,
    ),
    Task(
        "grep",
        ("read", "grep"),
        (
            "Use grep to find the file that contains FIXME.",
            "Which file under src has a FIXME comment? Search with grep.",
            "Search for FIXME with grep and name the file.",
            "grep for FIXME: in which file is it?",
            "Find FIXME in this project with the grep tool.",
        ),
        lambda attempt, _: "grep" in attempt.calls and "net.py" in attempt.answer,
    ),
    Task(
        "edit after approval",
        ("read", "edit"),
        (
            "Read src/config.py.\nUse edit to replace TIMEOUT = 30 by TIMEOUT = 60 in src/config.py.",
            "What is in src/config.py?\nNow change TIMEOUT = 30 to TIMEOUT = 60 there with edit.",
            "Read src/config.py.\nEdit the file: the old text is TIMEOUT = 30, the new text is TIMEOUT = 60.",
            "Show me src/config.py.\nCall edit with the old text TIMEOUT = 30 and the new text TIMEOUT = 60.",
            "Read src/config.py.\nSet TIMEOUT to 60 with the edit tool.",
        ),
        _has_edited,
    ),
    Task(
        "run a test",
        ("read", "bash"),
        (
            "Run python3 test_config.py with bash.\nWhich test failed?",
            "Run the command python3 test_config.py.\nName the test that failed.",
            "Use bash to run python3 test_config.py.\nWhat is the name of the failed test?",
            "Run the tests: python3 test_config.py\nWhich of them failed, and why?",
            "Call bash with python3 test_config.py.\nWhich test fails?",
        ),
        lambda attempt, _: "bash" in attempt.calls and bool(attempt.questions) and "timeout" in attempt.answer.lower(),
    ),
    Task(
        "use a skill",
        ("read",),
        (
            "Read the skill release-note. What does a release note begin with?",
            "What must a release note begin with? The skill release-note says it.",
            "Use the skill release-note to find out how a release note begins.",
            "How does a release note begin in this project?",
            "Look into the skill release-note: how does a note begin?",
        ),
        lambda attempt, _: "skill" in attempt.calls and "NOTE-88" in attempt.answer,
        has_skill=True,
    ),
    Task(
        "MCP call",
        ("read",),
        (
            "Add the note 'call Ada' with diary__add.",
            "Use diary__add to add a note that says: buy milk.",
            "Add a note to the diary: the build is green.",
            "Please note down 'meeting at nine' in the diary.",
            "Call diary__add with the text 'water the plants'.",
        ),
        _has_noted,
        has_server=True,
    ),
    Task(
        "sub-agent",
        ("read", "task"),
        tuple(FACTS)[5:],
        lambda attempt, _: "task" in attempt.calls and FACTS[attempt.prompt] in attempt.answer,
    ),
)


class YesDialog:
    """A person who says yes once to every question."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    async def ask(self, question: Question, /) -> Reply:
        """Say yes."""
        self._attempt.questions.append(question.title)
        return Reply(key="y")

    def show(self, text: str, /) -> None:
        """Ignore a line for people."""


async def try_once(
    task: Task, prompt: str, folder: Path, base_url: str, name: str, window: int, *, all_tools: bool
) -> Attempt:
    """Run one prompt in a new conversation, and judge what happened."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    if task.has_skill:
        _add_skill(folder)
    servers = folder.parent / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"diary": {"command": sys.executable, "args": [str(DIARY_SERVER)]}}}))
    attempt = Attempt(task.name, prompt)
    invocation = Invocation(
        cwd=str(folder),
        model=name,
        base_url=base_url,
        context_window=window,
        tools=None if all_tools else task.tools,
        mcp=(str(servers),) if all_tools or task.has_server else (),
        no_mcp=not all_tools and not task.has_server,
        no_addons=not task.has_skill,
        max_requests=REQUESTS,
    )

    async def follow(event: RunEvent) -> None:
        if isinstance(event, ToolCalled):
            attempt.calls.append(event.name)
            attempt.arguments.append(event.arguments)
        elif isinstance(event, ToolAnswered) and event.is_error:
            attempt.failed += 1
            attempt.errors.append(event.text[:500])

    started, worked = time.monotonic(), read_engine_seconds()
    cancel = CancelToken()
    async with open_conversation(invocation, dialog=YesDialog(attempt)) as conversation:
        await conversation.loading.wait()
        await conversation.wait_for_servers()
        with anyio.move_on_after(LIMIT_S):
            for line in prompt.splitlines():  # one turn each
                result = await conversation.run_turn(line, sink=follow, cancel=cancel, budget=RequestBudget(REQUESTS))
                attempt.answer, attempt.end = result.text, result.reason
        usage = conversation.usage
    attempt.seconds, attempt.engine_seconds = time.monotonic() - started, read_engine_seconds() - worked
    attempt.requests, attempt.input_tokens = usage.requests, usage.input_tokens
    attempt.cached_tokens, attempt.output_tokens = usage.cache_read_tokens, usage.output_tokens
    attempt.success = attempt.end == "done" and task.check(attempt, folder)
    return attempt


def _add_skill(folder: Path) -> None:
    """Add the skill to the project, with the user's consent."""
    (folder / SKILL).mkdir(parents=True)
    (folder / SKILL / SKILL_FILE).write_text(SKILL_TEXT)
    skill = read_skill(os.path.realpath(folder / SKILL), is_project=True)
    AddonConsentStore().approve(skill.file, skill.describe().digest)


def read_engine_seconds() -> float:
    """Read the CPU time of the process of the engine; 0 where the system does not tell."""
    total = 0.0
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text("ascii").split():
            if Path(host.__file__).name in Path(f"/proc/{pid}/cmdline").read_text("utf-8"):
                demand = read_cpu_demand(int(pid))
                total += demand.used_s if demand else 0.0
    return total


def print_table(attempts: Sequence[Attempt]) -> None:
    """Print the results by task, in Markdown."""
    print(
        "\n| Task | Managed | Seconds | CPU seconds of the engine | Requests | Tokens read, of which cached | Written |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in TASKS:
        rows = [attempt for attempt in attempts if attempt.task == task.name]
        if rows:
            seconds = ", ".join(f"{attempt.seconds:.0f}" for attempt in rows)
            engine = ", ".join(f"{attempt.engine_seconds:.0f}" for attempt in rows)
            managed = f"{sum(attempt.success for attempt in rows)} of {len(rows)}"
            read, cached = sum(row.input_tokens for row in rows), sum(row.cached_tokens for row in rows)
            written, requests = sum(row.output_tokens for row in rows), sum(row.requests for row in rows)
            print(
                f"| {task.name} | {managed} | {seconds} | {engine} | {requests} | {read:,}, {cached:,} | {written:,} |"
            )


@contextmanager
def private_state(folder: Path) -> Generator[None]:
    """Keep conversations and the ledger of the tries in a directory of their own."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before


async def run_tries(
    weights: LocalWeights, tries: int, only: Sequence[str], output: str | None, *, all_tools: bool
) -> int:
    """Run every task, print each try as it ends, and the table at the end."""
    window = weights.context_window
    attempts: list[Attempt] = []
    with tempfile.TemporaryDirectory(prefix="local-") as temporary:
        started = time.monotonic()
        async with open_local_server(weights) as address:
            print(f"{weights.name}: loaded in {time.monotonic() - started:.1f} s, {window:,} tokens", flush=True)
            os.environ[OWN_KEY] = address.key
            with private_state(Path(temporary) / "state"):
                for task in TASKS:
                    for prompt in task.prompts[:tries] if not only or task.name in only else ():
                        folder = Path(temporary) / "project"
                        attempt = await try_once(
                            task, prompt, folder, address.base_url, weights.name, window, all_tools=all_tools
                        )
                        attempts.append(attempt)
                        mark = "managed" if attempt.success else f"failed ({attempt.end or 'time'})"
                        asked = f", asked {len(attempt.questions)}" if attempt.questions else ""
                        times = f"{attempt.seconds:.0f} s ({attempt.engine_seconds:.0f} s of the engine)"
                        print(f"\n[{task.name}] {prompt}\n  {mark} in {times}{asked}", flush=True)
                        print(f"  calls: {', '.join(attempt.calls) or 'none'} ({attempt.failed} failed)", flush=True)
                        print(f"  answer: {attempt.answer.strip()[:300]}", flush=True)
                        if output is not None:
                            await anyio.Path(output).write_text(
                                json.dumps([vars(row) for row in attempts], indent=1), "utf-8"
                            )
    print_table(attempts)
    return 0 if any(attempt.success for attempt in attempts) else 1


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(
        prog="python -m outside.local_model", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tries", type=int, default=1, help="wordings of each task, 5 at most")
    parser.add_argument("--weights", metavar="FILE", help="a GGUF file instead of the fetched model")
    parser.add_argument("--task", action="append", default=[], choices=[task.name for task in TASKS])
    parser.add_argument("--all-tools", action="store_true", help="the whole deck that fits, in every task")
    parser.add_argument("--json", metavar="FILE", help="write every try there")
    options = parser.parse_args()
    model = LocalWeights(QWEN_CODER.name, QWEN_CODER.path, QWEN_CODER.context_window, QWEN_CODER.chat_template)
    if options.weights:
        model = LocalWeights(Path(options.weights).name, options.weights, QWEN_CODER.context_window)

    async def run() -> int:
        return await run_tries(model, options.tries, options.task, options.json, all_tools=options.all_tools)

    print(f"{QWEN_CODER.title if not options.weights else options.weights}, {os.cpu_count()} cores", flush=True)
    try:
        return anyio.run(run)
    except WeightsError as exc:
        print(exc, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
