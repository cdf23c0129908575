"""`bash`: run a command and give what it said.

It is over when the shell exits. What runs on in the background is kept as a job of the session;
what is over its time, or no longer wanted, is ended with all that it has started.
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

from indusagi.capabilities.coercion import coerce_to
from indusagi.capabilities.context import PerContext, ToolContext
from indusagi.capabilities.files.text.codec import digest_bytes
from indusagi.capabilities.files.text.display import format_path
from indusagi.capabilities.jobs.exit_codes import explain_exit_code
from indusagi.capabilities.jobs.foreground import ForegroundWait, find_lasting_survivors
from indusagi.capabilities.jobs.job import Job, describe_exit, to_shell_exit_code
from indusagi.capabilities.jobs.table import JobLimitError, capture_path, jobs_of
from indusagi.capabilities.jobs.text import RenderedOutput, hidden_note, render_output
from indusagi.capabilities.ports import Ended, FileKind, SandboxMissing, SandboxState, ShellProcess
from indusagi.capabilities.sandbox.policy import PROTECTED, UNPROTECTED
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.paths import path_given, path_trouble
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.paths import is_within
from indusagi.runtime.content import TextContentBlock
from indusagi.runtime.contract import JsonSchema, Keep, ToolResult

_LARGEST = 1024 * 1024
"""Of a larger file no command could have shown much."""
_WORD = r"""'[^'\n]*'|"[^"$`\\\n!]*"|[\w@%+=:,./-]+"""
_WORDS = re.compile(_WORD)
_PLAIN = re.compile(rf"\s*(?:{_WORD})(?:[ \t]+(?:{_WORD}))*\s*")
"""Words in which nothing stands for anything else, and nothing but words."""
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
"""Who shows a file, with which options; all others change it, follow it or show something else."""
_WITH_A_NUMBER = {"head": "nc", "tail": "nc", "grep": "ABCm", "egrep": "ABCm", "fgrep": "ABCm"}
_LINES = re.compile(r"(\d+|\$)(,(\d+|\$))?p")


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file that a command is about to show."""

    path: str
    digest: str


def parse_shown_file(command: str) -> str | None:
    """Name the one file that a command shows; None if it may do anything else."""
    if _PLAIN.fullmatch(command) is None:
        return None
    name, *words = (word.strip("'\"") for word in _WORDS.findall(command))
    if name not in _OPTIONS:
        return None
    options, operands = _parted(name, words)
    if not all(re.fullmatch(_OPTIONS[name], option) for option in options):
        return None
    if name == "sed":
        is_so = options == ["-n"] and len(operands) == 2 and _LINES.fullmatch(operands[0])
    else:
        is_so = len(operands) == (2 if name.endswith("grep") else 1)
    return operands[-1] if is_so else None


def _parted(name: str, words: list[str]) -> tuple[list[str], list[str]]:
    """Tell options from what follows them; a number belongs to the option before it."""
    options: list[str] = []
    while words and words[0].startswith("-") and words[0] != "--":
        option, words = words[0], words[1:]
        if option[1:] and option[1:] in _WITH_A_NUMBER.get(name, "") and words:
            option, words = option + words[0], words[1:]
        options.append(option)
    return options, words[1:] if words[:1] == ["--"] else words


async def find_shown_file(command: str, folder: str, ctx: ToolContext) -> ShownFile | None:
    """Look at the file that a command is about to show, if it is one."""
    name = None if ctx.framework.read_state is None else parse_shown_file(command)
    if name is None:
        return None
    try:
        path = await ctx.fs.resolve(os.path.join(folder, name))
        found = await ctx.fs.stat(path)
        if found.kind is not FileKind.FILE or found.size > _LARGEST:
            return None
        return ShownFile(path, await _digest(path, ctx))
    except OSError:
        return None


async def record_shown_file(reading: ShownFile, ctx: ToolContext) -> None:
    """Count a file as read, if it is still what it was before it was shown."""
    state = ctx.framework.read_state
    try:
        if state is not None and await _digest(reading.path, ctx) == reading.digest:
            state.record(reading.path, reading.digest)
    except OSError:
        return


async def _digest(path: str, ctx: ToolContext) -> str:
    return await to_thread.run_sync(digest_bytes, await ctx.fs.read_bytes(path, limit=_LARGEST + 1))


async def resolve_start_directory(path: str, ctx: ToolContext) -> str:
    """Find the directory in which a command is to start.

    Raises:
        OSError: There is no such directory, or it is not for commands.
    """
    folder = await ctx.fs.resolve(path)
    if (await ctx.fs.stat(folder)).kind is not FileKind.DIRECTORY:
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory")
    return folder


def report_start_failure(exc: OSError) -> ToolResult:
    """Answer for a command that could not be started: why, and under which code."""
    if isinstance(exc, JobLimitError):
        return ToolResult.error(str(exc), code="failed")
    code = "denied" if isinstance(exc, SandboxMissing) else "spawn"
    return ToolResult.error(f"the command was not run: {exc.strerror or exc}", code=code)


DEFAULT_TIMEOUT_MS = 120_000
LONGEST_TIMEOUT_MS = 600_000
_NO_NETWORK = re.compile(
    r"resolve host|name resolution|Name or service not known|unreachable|Connection refused"
    r"|Permission denied.*connect|connect.*Permission denied|EAI_AGAIN|ECONNREFUSED"
)
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


def bash_tool() -> DefinedTool:
    """Make the tool."""
    return define_tool(
        ToolSpec(
            "bash", _DESCRIPTION, _SCHEMA, _run, title="Run a command", prepare=coerce_to(_SCHEMA, _ALIASES), terse=True
        )
    )


class _Session:
    """What one command leaves for the next."""

    def __init__(self) -> None:
        self.cwd: str | None = None
        """Where the last command ended, if that is not the workspace itself."""
        self.told: set[str] = set()
        """What was said of the sandbox."""


_SESSIONS: PerContext[_Session] = PerContext(_Session)


@dataclass(slots=True)
class _Report:
    """What is said of a command below its output, and what programs are told."""

    notes: list[str] = field(default_factory=list[str])
    details: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])
    code: str | None = None
    """Set if it is an error."""

    def result(self, output: str) -> ToolResult:
        """Make the answer."""
        said = [output.rstrip("\n") or "(no output)", *(f"[{note}]" for note in self.notes)]
        details = self.details if self.code is None else {"code": self.code, **self.details}
        return ToolResult((TextContentBlock("\n".join(said)),), self.code is not None, details=details, keep=Keep.ENDS)


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
            return _in_background(await table.start(ctx, command, folder))
        reading = await find_shown_file(command, folder, ctx)
        path = await capture_path(ctx.session_dir, "tool-output")
        process = await ctx.shell.spawn(command, cwd=folder, output_path=path)
    except OSError as exc:
        return report_start_failure(exc)
    _tell_of_sandbox(process.sandbox, session, report)
    limit = cast("int", arguments.get("timeoutMs", DEFAULT_TIMEOUT_MS))
    result = await _Call(command, folder, path, process, ctx, report).run(limit, None if given else session)
    if reading is not None and report.details.get("exitCode") == 0 and _is_whole(report):
        await record_shown_file(reading, ctx)
    return result


def _is_whole(report: _Report) -> bool:
    return report.code is None and report.details.get("truncated") is False


async def _folder(arguments: JsonObject, ctx: ToolContext, session: _Session, report: _Report) -> str:
    """Say where the command is to start.

    Raises:
        OSError: There is no such directory, or it is not for commands.
    """
    if arguments.get("cwd") is None and session.cwd is not None:
        try:
            return await resolve_start_directory(session.cwd, ctx)
        except OSError:
            report.notes.append(f"{format_path(session.cwd)} is gone: started in {ctx.cwd}")
            session.cwd = None
    return await resolve_start_directory(path_given(arguments, "cwd"), ctx)


def _in_background(job: Job) -> ToolResult:
    text = f"{job.id} started (pid {job.process.pid}): poll and stop it with the process tool"
    return ToolResult.text(text, job=job.id, pid=job.process.pid, sandbox=str(job.process.sandbox), path=job.path)


def _tell_of_sandbox(state: SandboxState, session: _Session, report: _Report) -> None:
    report.details["sandbox"] = str(state)
    if state.kind == "none":
        note = f"commands run without a sandbox here: {state.detail}"
    elif UNPROTECTED in state.lacks:
        note = f"commands run in {state.kind}, which cannot guard {', '.join(PROTECTED)}"
    else:
        return
    if note not in session.told:
        session.told.add(note)
        report.notes.append(note)


class _Call:
    """One command that is waited for."""

    def __init__(
        self, command: str, folder: str, path: str | None, process: ShellProcess, ctx: ToolContext, report: _Report
    ) -> None:
        self._command = command
        self._folder = folder
        self._path = path
        self._process = process
        self._ctx = ctx
        self._report = report
        self._watch = ForegroundWait(process, ctx)

    async def run(self, limit_ms: int, session: _Session | None) -> ToolResult:
        """Wait for the end and answer; whatever happens, nothing runs on that nobody knows of."""
        adopted = False
        try:
            ended = await self._watch.until_over(limit_ms / 1000)
            if ended is Ended.CANCELLED:
                # A cancelled token asks for an answer: with what was said so far.
                with anyio.CancelScope(shield=True):
                    return await self._stopped(f"stopped: {self._ctx.cancel.reason}", "cancelled")
            if ended is Ended.TIMEOUT:
                return await self._stopped(f"timed out after {limit_ms:,} ms", "timeout")
            if session is not None:
                await self._remember_cwd(session)
            shown = await self._shown()
            self._judge(shown)
            adopted = await self._keep_survivors()
            return self._report.result(shown.text)
        except OSError as exc:
            return self._lost(exc)
        finally:
            if not adopted:
                with anyio.CancelScope(shield=True):
                    await self._give_up()

    def _lost(self, exc: OSError) -> ToolResult:
        code = self._process.exit_code
        ended = "" if code is None else f" (the command itself: {describe_exit(code)})"
        return ToolResult.error(
            f"its output could not be kept: {exc}{ended}", code="failed", exitCode=to_shell_exit_code(code)
        )

    async def _stopped(self, why: str, code: str) -> ToolResult:
        await self._process.stop()
        shown = await self._shown()
        self._report.code = code
        self._report.details |= {"ended": code, "exitCode": to_shell_exit_code(self._process.exit_code)}
        if self._watch.stalled:
            why = f"{why}; it was waiting for somebody to type"
        self._report.notes.append(f"{why}; it was ended with all that it had started")
        return self._report.result(shown.text)

    async def _shown(self) -> RenderedOutput:
        shown = await to_thread.run_sync(render_output, self._process, self._path)
        self._report.details |= {
            "bytes": self._process.output_size(),
            "truncated": not shown.whole,
            "path": None if shown.whole else self._path,
        }
        self._report.notes.extend(hidden_note(shown.text))
        return shown

    async def _give_up(self) -> None:
        """End what is left, and remove a file that holds no more than what was shown."""
        await self._process.aclose()
        if self._path is not None and self._report.details.get("path") is None:
            await to_thread.run_sync(_unlink, self._path)

    def _judge(self, shown: RenderedOutput) -> None:
        code = self._process.exit_code or 0
        self._report.details |= {"ended": "exited", "exitCode": to_shell_exit_code(code)}
        if code == 0:
            return
        if not self._process.sandbox.network and _NO_NETWORK.search(shown.text):
            self._report.notes.append("the sandbox of commands has no network")
        answer = explain_exit_code(self._command, code, shown.text)
        self._report.notes.append(describe_exit(code) if answer is None else f"{describe_exit(code)}: {answer}")
        self._report.code = "failed" if answer is None else None

    async def _remember_cwd(self, session: _Session) -> None:
        """Keep the directory in which the shell ended for the next command."""
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
        """Make a job of what runs on; tell whether there is one."""
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


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
