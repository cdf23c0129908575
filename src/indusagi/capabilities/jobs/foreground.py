"""Foreground commands: wait for one with a time limit, and interpret its exit code.

For some programs, exit code 1 is an answer rather than a failure: `grep` found nothing, `diff` found a difference. That
only applies if such a program ran last and so set the code. If an earlier one may have set it, it's a failure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.jobs.job import plain_text
from indusagi.capabilities.ports import Ended
from indusagi.core.process.tree import reads_terminal
from indusagi.runtime.contract import ToolProgress

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import ShellProcess

STALL_S = 15.0
"""After this much silence, check whether the program is waiting for terminal input."""
_PROGRESS_INTERVAL_S = 0.25
_PROGRESS_BYTES = 4_096
_SETTLE_S = 0.1
_POLL_INTERVAL_S = 0.02
_ANSWERS = {
    "grep": "nothing matched",
    "egrep": "nothing matched",
    "fgrep": "nothing matched",
    "zgrep": "nothing matched",
    "rg": "nothing matched",
    "ag": "nothing matched",
    "pgrep": "nothing matched",
    "diff": "they differ",
    "cmp": "they differ",
    "test": "not so",
    "[": "not so",
    "[[": "not so",
    "git grep": "nothing matched",
    "git diff": "they differ",
}
_QUIET_FIRST = frozenset({"cd", "pushd", "export", "set", "echo", "printf", "true", ":", "mkdir"})
"""Programs that may precede it: they print a message if they fail."""
_NEVER_FAIL = frozenset({"echo", "printf", "true", ":"})
"""Programs that may follow it after `&&`: they didn't set the code."""
_SKIPPED = frozenset({"command", "builtin", "time", "nice", "env", "then", "do", "{", "("})
_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t]|\\\n)+)|(?P<comment>\#[^\n]*)|(?P<op>&&|\|\||[;|\n]|&(?![>0-9])|[()])"""
    r"""|(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[$<>]\([^()]*\)|[^\s;|&()'"\\]"""
    r"""|&(?=[>0-9])|[<>]&)+)|(?P<rest>.)""",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_MAX_PARSED = 4_000
"""Longest command to parse; anything longer is a script."""


class ForegroundWait:
    """Waits for a command and reports its progress."""

    def __init__(self, process: ShellProcess, ctx: ToolContext) -> None:
        self.stalled = False
        """Whether it waited for terminal input, which never comes."""
        self._process = process
        self._ctx = ctx
        self._reported = 0
        self._size = 0
        self._moved = anyio.current_time()

    async def wait(self, limit_s: float) -> Ended:
        """Wait until the command itself exits, `limit_s` passes, or the context's token is cancelled.

        Cancellation of the task propagates unless the token is cancelled.
        """
        try:
            with anyio.move_on_after(limit_s):
                while True:
                    with anyio.move_on_after(_PROGRESS_INTERVAL_S):
                        await self._process.wait()
                        return Ended.EXITED
                    await self._report_progress()
            return Ended.TIMEOUT
        except anyio.get_cancelled_exc_class():
            if not self._ctx.cancel.cancelled:
                raise
            return Ended.CANCELLED

    async def _report_progress(self) -> None:
        size = self._process.output_size()
        if size != self._size:
            self._size, self._moved = size, anyio.current_time()
        elif not self.stalled and anyio.current_time() - self._moved >= STALL_S:
            self._moved = anyio.current_time()
            self.stalled = await to_thread.run_sync(
                lambda: reads_terminal([self._process.pid, *self._process.survivors()])
            )
            if self.stalled:
                self._ctx.report(ToolProgress(size, None, "waits for terminal input"))
        if self._ctx.on_progress is not None and size != self._reported:
            self._reported = size
            self._ctx.report(ToolProgress(size, None, await to_thread.run_sync(self._read_latest)))

    def _read_latest(self) -> str:
        try:
            return plain_text(self._process.read_output(max(self._reported - _PROGRESS_BYTES, 0)))
        except OSError:  # we report it at the end
            return ""


async def find_lasting_survivors(process: ShellProcess) -> list[int]:
    """List the processes a command left in the background, after a grace period for ones about to exit."""
    left = list(await to_thread.run_sync(process.survivors))
    with anyio.move_on_after(_SETTLE_S):
        while left:
            await anyio.sleep(_POLL_INTERVAL_S)
            left = list(await to_thread.run_sync(process.survivors))
    return left


def explain_exit_code(command: str, code: int, output: str) -> str | None:
    """Explain exit code 1 if it's an answer rather than a failure, otherwise return None."""
    if code != 1 or len(command) > _MAX_PARSED or "<<" in command:
        return None
    steps = _steps(command)
    while steps and steps[-1][0] == "&&" and steps[-1][1][0] in _NEVER_FAIL:
        steps.pop()
    if not steps:
        return None
    answer = _answer(steps[-1][1])
    # An earlier command may have set the code, so that the last one didn't run.
    earlier = [words for _, words in steps[:-1]]
    has_exit = any("exit" in words[:2] for words in earlier)
    is_strict = any(
        words[0] == "set" and (option in {"errexit", "pipefail"} or re.fullmatch(r"-\w*e\w*", option))
        for words in earlier
        for option in words[1:]
    )
    if answer is None or has_exit or (is_strict and not all(words[0] in _QUIET_FIRST for words in earlier)):
        return None
    # The steps that had to succeed for the last one to run.
    for index in range(len(steps) - 1, 0, -1):
        operator, former = steps[index][0], steps[index - 1][1]
        if operator not in {"&&", "||", "|"}:
            break
        if operator == "||" or (operator == "&&" and former[0] not in _QUIET_FIRST):
            return None
    # A message from the shell itself: it couldn't run a program.
    return None if re.search(r"^\S*bash: (line \d+: )?", output, re.MULTILINE) else answer


def _answer(words: list[str]) -> str | None:
    while words and (words[0] in _SKIPPED or _ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    if not words:
        return None
    name = words[0].rpartition("/")[2]
    if name == "git":
        name = f"git {words[1]}" if len(words) > 1 else name
    return _ANSWERS.get(name)


def _steps(command: str) -> list[tuple[str, list[str]]]:
    """Split a command into simple commands, each with the operator before it."""
    steps: list[tuple[str, list[str]]] = [("", [])]
    for match in _TOKEN.finditer(command):
        kind, text = match.lastgroup, match.group()
        if kind == "rest":  # an unclosed quote, or invalid shell syntax
            return []
        if kind == "op":
            steps.append((text, []))
        elif kind == "word":
            steps[-1][1].append(text)
    # An operator at the end of a line, or an empty line, doesn't start a command.
    return [step for step in steps if step[1]]
