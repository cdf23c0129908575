"""`bash`: run a command and return its output.

The command ends when the shell exits. Processes it leaves in the background become a job of the session. We terminate
the process tree of a command that is cancelled or exceeds its time limit.

For some programs, exit code 1 is an answer rather than a failure: `grep` found nothing, `diff` found a difference. That
only applies if such a program ran last and so set the code. If an earlier one may have set it, it is a failure.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import anyio
from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import PerContext, ToolContext
from indusagi.capabilities.files.codec import digest_bytes
from indusagi.capabilities.files.lines import format_path
from indusagi.capabilities.jobs import (
    JobLimitError,
    RenderedOutput,
    capture_path,
    describe_exit,
    hidden_note,
    jobs_of,
    plain_text,
    render_output,
    to_shell_exit_code,
)
from indusagi.capabilities.ports import DEFAULT_TIMEOUT_MS, Ended, FileKind, SandboxMissing, ShellProcess
from indusagi.capabilities.sandbox.policy import PROTECTED, UNPROTECTED
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.capabilities.tools.paths import path_given, path_trouble
from indusagi.core.app_dirs import is_within
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import JsonSchema, Keep, TextContentBlock, ToolProgress, ToolResult

LONGEST_TIMEOUT_MS = 600_000
_DESCRIPTION = (
    "Run a command with bash; answers with stdout and stderr. Standard input is empty, there "
    "is no terminal. The working directory carries over while it stays in the workspace; "
    "variables do not. Of long output both ends are shown and the whole is kept in a file. In "
    "a sandbox /tmp is for commands alone. What is left running is a job: see `process`. To "
    "read, search and edit files use the other tools."
)
_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "timeoutMs": {
            "type": "integer",
            "minimum": 1,
            "maximum": LONGEST_TIMEOUT_MS,
            "description": f"Default {DEFAULT_TIMEOUT_MS}, at most {LONGEST_TIMEOUT_MS}.",
        },
        "cwd": {"type": "string", "description": "Where this one command starts."},
        "description": {"type": "string", "description": "What it is for."},
        "background": {"type": "boolean", "description": "Start it as a job: servers, watchers."},
    },
    "required": ["command"],
    "additionalProperties": False,
}
_ALIASES = {
    "cmd": "command",
    "script": "command",
    "timeout_ms": "timeoutMs",
    "workdir": "cwd",
    "working_directory": "cwd",
    "run_in_background": "background",
    "is_background": "background",
}
_MAX_SHOWN_BYTES = 1024 * 1024
"""A command can only show a small part of a larger file."""
_WORD = r"""'[^'\n]*'|"[^"$`\\\n!]*"|[\w@%+=:,./-]+"""
_PLAIN = rf"\s*(?:{_WORD})(?:[ \t]+(?:{_WORD}))*\s*"
"""Literal words only: no expansion, glob or operator."""
_COUNTED = r"-[nc][+-]?\d+|-\d+|-q"
_GREP = r"-[aEFGhHinoPsvwx]+|-[ABCm]\d+"
_OPTIONS = {
    "cat": r"-[AbeEnstTuv]+",
    "nl": r"-[bhf][aetn]",
    "head": _COUNTED,
    "tail": _COUNTED,
    "sed": r"-n",
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
}
"""Programs that print a file, with the options that only affect formatting."""
_WITH_A_NUMBER = {"head": "nc", "tail": "nc", "grep": "ABCm", "egrep": "ABCm", "fgrep": "ABCm"}
_LINES = r"(\d+|\$)(,(\d+|\$))?p"
_NO_NETWORK = (
    r"resolve host|name resolution|Name or service not known|unreachable|Connection refused"
    r"|Permission denied.*connect|connect.*Permission denied|EAI_AGAIN|ECONNREFUSED"
)


def bash_tool() -> DefinedTool:
    """Create the `bash` tool."""
    return define_native_tool("bash", "Run a command", _DESCRIPTION, _SCHEMA, _run, coerce_to(_SCHEMA, _ALIASES))


@record
class ShownFile:
    """A file that a command is about to print."""

    path: str
    digest: str


def parse_shown_file(command: str) -> str | None:
    """Return the single file a command prints; None if it might do anything else."""
    if re.fullmatch(_PLAIN, command) is None:
        return None
    name, *words = (word.strip("'\"") for word in re.findall(_WORD, command))
    if name not in _OPTIONS:
        return None
    options: list[str] = []
    while words and words[0].startswith("-") and words[0] != "--":
        option, words = words[0], words[1:]
        # A number belongs to the preceding option.
        if option[1:] and option[1:] in _WITH_A_NUMBER.get(name, "") and words:
            option, words = option + words[0], words[1:]
        options.append(option)
    operands = words[1:] if words[:1] == ["--"] else words
    if not all(re.fullmatch(_OPTIONS[name], option) for option in options):
        return None
    if name == "sed":
        is_plain = options == ["-n"] and len(operands) == 2 and re.fullmatch(_LINES, operands[0])
    else:
        is_plain = len(operands) == (2 if name.endswith("grep") else 1)
    return operands[-1] if is_plain else None


async def find_shown_file(command: str, folder: str, ctx: ToolContext) -> ShownFile | None:
    """Return the file a command is about to print, with its digest, if that's all it does."""
    name = None if ctx.framework.read_state is None else parse_shown_file(command)
    if name is None:
        return None
    try:
        path = await ctx.fs.resolve(os.path.join(folder, name))
        status = await ctx.fs.stat(path)
        if status.kind is not FileKind.FILE or status.size > _MAX_SHOWN_BYTES:
            return None
        return ShownFile(path, await _digest(path, ctx))
    except OSError:
        return None


async def record_shown_file(reading: ShownFile, ctx: ToolContext) -> None:
    """Record a file as read if it didn't change while the command ran."""
    state = ctx.framework.read_state
    try:
        if state is not None and await _digest(reading.path, ctx) == reading.digest:
            state.record(reading.path, reading.digest)
    except OSError:
        return


async def _digest(path: str, ctx: ToolContext) -> str:
    return await to_thread.run_sync(digest_bytes, await ctx.fs.read_bytes(path, limit=_MAX_SHOWN_BYTES + 1))


async def resolve_start_directory(path: str, ctx: ToolContext) -> str:
    """Resolve the directory a command starts in.

    Raises `OSError` if the directory doesn't exist or is outside the workspace.
    """
    folder = await ctx.fs.resolve(path)
    if (await ctx.fs.stat(folder)).kind is not FileKind.DIRECTORY:
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory")
    return folder


def report_start_failure(exc: OSError) -> ToolResult:
    """Build the error result for a command that failed to start."""
    if isinstance(exc, JobLimitError):
        return ToolResult.error(str(exc), code="failed")
    code = "denied" if isinstance(exc, SandboxMissing) else "spawn"
    return ToolResult.error(f"the command was not run: {exc.strerror or exc}", code=code)


class _Session:
    """State carried over from one command to the next."""

    def __init__(self) -> None:
        self.cwd: str | None = None
        """Final directory of the last command, unless it's the workspace itself."""
        self.notes: set[str] = set()
        """Sandbox notes already reported."""


_SESSIONS: PerContext[_Session] = PerContext(_Session)


@dataclass(slots=True)
class _Report:
    """Notes below the output of a command, and details for programs."""

    notes: list[str] = field(default_factory=list[str])
    details: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])
    code: str | None = None
    """Error code; None if the call succeeded."""

    def result(self, output: str) -> ToolResult:
        """Make the result."""
        lines = [output.rstrip("\n") or "(no output)", *(f"[{note}]" for note in self.notes)]
        details = self.details if self.code is None else {"code": self.code, **self.details}
        details = {**details, "notes": len(self.notes)} if self.notes else details
        return ToolResult((TextContentBlock("\n".join(lines)),), self.code is not None, details=details, keep=Keep.ENDS)


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    session, report, table = _SESSIONS.of(ctx), _Report(), jobs_of(ctx)
    given = arguments.get("cwd")
    try:
        folder = await _folder(arguments, ctx, session, report)
    except OSError as exc:
        return path_trouble(exc, path_given(arguments, "cwd"))
    command = cast("str", arguments["command"])
    try:
        if arguments.get("background"):
            job = await table.start(ctx, command, folder)
            text = f"{job.id} started (pid {job.process.pid}): poll and stop it with the process tool"
            facts: JsonObject = {"job": job.id, "pid": job.process.pid, "sandbox": str(job.process.sandbox)}
            return ToolResult.text(text, **facts, path=job.path)
        reading = await find_shown_file(command, folder, ctx)
        path = await capture_path(ctx.session_dir, "tool-output")
        process = await ctx.shell.spawn(command, cwd=folder, output_path=path)
    except OSError as exc:
        return report_start_failure(exc)
    sandbox, note = process.sandbox, ""
    report.details["sandbox"] = str(sandbox)
    if sandbox.kind == "none":
        note = f"commands run without a sandbox here: {sandbox.detail}"
    elif UNPROTECTED in sandbox.lacks:
        note = f"commands run in {sandbox.kind}, which cannot guard {', '.join(PROTECTED)}"
    if note and note not in session.notes:
        session.notes.add(note)
        report.notes.append(note)
    limit = cast("int", arguments.get("timeoutMs", DEFAULT_TIMEOUT_MS))
    call = _BashRun(command, folder, path, process, ctx, report)
    result = await call.run(limit, None if given else session)
    is_whole = report.code is None and report.details.get("truncated") is False
    if reading is not None and report.details.get("exitCode") == 0 and is_whole:
        await record_shown_file(reading, ctx)
    return result


async def _folder(arguments: JsonObject, ctx: ToolContext, session: _Session, report: _Report) -> str:
    """Resolve the directory the command starts in.

    Raises `OSError` if the directory doesn't exist or is outside the workspace.
    """
    if arguments.get("cwd") is None and session.cwd is not None:
        try:
            return await resolve_start_directory(session.cwd, ctx)
        except OSError:
            report.notes.append(f"{format_path(session.cwd)} is gone: started in {ctx.cwd}")
            session.cwd = None
    return await resolve_start_directory(path_given(arguments, "cwd"), ctx)


class _BashRun:
    """A foreground command."""

    def __init__(
        self, command: str, folder: str, path: str | None, process: ShellProcess, ctx: ToolContext, report: _Report
    ) -> None:
        self._command = command
        self._folder = folder
        self._path = path
        self._process = process
        self._ctx = ctx
        self._report = report
        self._reported = 0
        """How much of the output was reported as progress."""

    async def run(self, limit_ms: int, session: _Session | None) -> ToolResult:
        """Wait for the end and return the result; surviving processes become a job or get killed."""
        adopted = False
        try:
            ended = await self._wait(limit_ms / 1000)
            if ended is Ended.CANCELLED:
                # Even if the token is cancelled, return the output so far.
                with anyio.CancelScope(shield=True):
                    return await self._stop(f"stopped: {self._ctx.cancel.reason}", "cancelled")
            if ended is Ended.TIMEOUT:
                return await self._stop(f"timed out after {limit_ms:,} ms", "timeout")
            if session is not None:
                await self._remember_cwd(session)
            shown = await self._render()
            code = self._process.exit_code or 0
            self._report.details |= {"ended": "exited", "exitCode": to_shell_exit_code(code)}
            if code != 0:
                if not self._process.sandbox.network and re.search(_NO_NETWORK, shown.text):
                    self._report.notes.append("the sandbox of commands has no network")
                meaning = explain_exit_code(self._command, code, shown.text)
                explained = describe_exit(code) if meaning is None else f"{describe_exit(code)}: {meaning}"
                self._report.notes.append(explained)
                self._report.code = "failed" if meaning is None else None
            adopted = await self._keep_survivors()
            return self._report.result(shown.text)
        except OSError as exc:
            code = self._process.exit_code
            end = "" if code is None else f" (the command itself: {describe_exit(code)})"
            return ToolResult.error(
                f"its output could not be kept: {exc}{end}", code="failed", exitCode=to_shell_exit_code(code)
            )
        finally:
            if not adopted:
                with anyio.CancelScope(shield=True):
                    await self._process.aclose()
                    # Delete the file if we returned the full output.
                    if self._path is not None and self._report.details.get("path") is None:
                        with suppress(OSError):
                            await anyio.Path(self._path).unlink()

    async def _wait(self, limit_s: float) -> Ended:
        """Wait until the command itself exits, `limit_s` passes, or the context's token is cancelled.

        Cancellation of the task propagates unless the token is cancelled.
        """
        try:
            with anyio.move_on_after(limit_s):
                while True:
                    with anyio.move_on_after(_PROGRESS_INTERVAL_S):
                        await self._process.wait()
                        return Ended.EXITED
                    size = self._process.output_size()
                    if self._ctx.on_progress is not None and size != self._reported:
                        self._reported = size
                        self._ctx.report(ToolProgress(size, None, await to_thread.run_sync(self._read_latest)))
            return Ended.TIMEOUT
        except anyio.get_cancelled_exc_class():
            if not self._ctx.cancel.cancelled:
                raise
            return Ended.CANCELLED

    def _read_latest(self) -> str:
        try:
            return plain_text(self._process.read_output(max(self._reported - _PROGRESS_BYTES, 0)))
        except OSError:  # we report it at the end
            return ""

    async def _stop(self, why: str, code: str) -> ToolResult:
        await self._process.stop()
        shown = await self._render()
        self._report.code = code
        self._report.details |= {"ended": code, "exitCode": to_shell_exit_code(self._process.exit_code)}
        self._report.notes.append(f"{why}; it was ended with all that it had started")
        return self._report.result(shown.text)

    async def _render(self) -> RenderedOutput:
        shown = await to_thread.run_sync(render_output, self._process, self._path)
        self._report.details |= {
            "bytes": self._process.output_size(),
            "truncated": not shown.whole,
            "path": None if shown.whole else self._path,
        }
        self._report.notes.extend(hidden_note(shown.text))
        return shown

    async def _remember_cwd(self, session: _Session) -> None:
        """Store the shell's final directory for the next command."""
        final = await self._process.final_cwd()
        if final is None:
            return
        root = await self._ctx.fs.resolve(".")
        if is_within(final, root):
            session.cwd = None if final == root else final
            self._report.details["cwd"] = final
            return
        session.cwd = None
        shown = format_path(final)
        self._report.notes.append(f"ended in {shown}, which is not in the workspace: the next command starts in {root}")

    async def _keep_survivors(self) -> bool:
        """Turn background processes into a job; return whether there is one."""
        left = await find_lasting_survivors(self._process)
        if not left:
            return False
        pids = ", ".join(map(str, left))
        try:
            job = await jobs_of(self._ctx).adopt(self._process, self._command, self._folder, self._path)
        except JobLimitError as exc:
            self._report.notes.append(f"ended what ran on in the background (pids {pids}): {exc}")
            return False
        self._report.details |= {"job": job.id, "survivors": [*left]}
        count = "1 process runs" if len(left) == 1 else f"{len(left)} processes run"
        self._report.notes.append(f"{count} on in the background as {job.id} (pids {pids}): use the process tool")
        return True


# -- waiting, and the exit code ---------------------------------------------------------------------


_PROGRESS_INTERVAL_S = 0.25
_PROGRESS_BYTES = 4_096
_SETTLE_S = 0.1
_POLL_INTERVAL_S = 0.02
_ANSWERS = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep", "rg", "ag", "pgrep", "git grep"), "nothing matched"),
    **dict.fromkeys(("diff", "cmp", "git diff"), "they differ"),
    **dict.fromkeys(("test", "[", "[["), "not so"),
}
_QUIET_FIRST = frozenset({"cd", "pushd", "export", "set", "echo", "printf", "true", ":", "mkdir"})
"""Programs that may precede it: they print a message if they fail."""
_NEVER_FAIL = frozenset({"echo", "printf", "true", ":"})
"""Programs that may follow it after `&&`: they didn't set the code."""
_SKIPPED = frozenset({"command", "builtin", "time", "nice", "env"})
_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t]|\\\n)+)|(?P<comment>\#[^\n]*)|(?P<op>&&|\|\||[;|\n]|&(?![>0-9])|[()])"""
    r"""|(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[$<>]\([^()]*\)|[^\s;|&()'"\\]"""
    r"""|&(?=[>0-9])|[<>]&)+)|(?P<rest>.)""",
    re.DOTALL,
)
_MAY_END_EARLIER = re.compile(r"(?<![\w-])exit(?![\w-])|errexit|pipefail|\bset -\w*e")
"""An earlier program may have set the code, so that the last one didn't run."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_MAX_PARSED = 4_000
"""Longest command to parse; anything longer is a script."""


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
    if answer is None or _MAY_END_EARLIER.search(command):
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
