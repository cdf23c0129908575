"""Command hooks in the form of Claude Code: commands from settings that see, deny or question the calls of a session.

https://docs.claude.com/en/docs/claude-code/hooks. A hook gets a JSON object on standard input. Exit code 2 denies, with
standard error as the reason; a JSON object on standard output may deny, ask, or add context. A hook never allows what a
rule denies. Hooks run in the sandbox of commands. One that can't decide about a call (it timed out, or its script has
changed) denies it.

A project's hooks need consent, which covers the commands and the files of the project that they name. The user's own
run at once, and are shown the first time.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from shutil import rmtree
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
from anyio import to_thread

from indusagi.capabilities.leftovers import make_owned_dir
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.core.app_dirs import is_within, read_small_file
from indusagi.core.config_file import read_config_file
from indusagi.core.faults import CoreError, Note, describe_error
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_json, clean_text, cut_text
from indusagi.runtime.contract import ToolResult, project_content
from induscode.addons.chain import DENIED, REFUSED, LoadedAddon
from induscode.addons.contract import (
    Addon,
    Ask,
    Deny,
    InterceptedCall,
    Interceptor,
    InterceptorDecision,
    Replace,
    annotate,
)
from induscode.addons.loader import AddonConsentStore, ProjectAddon, discover_addons
from induscode.addons.skills import Skill, SkillSet
from induscode.core.consent import Consent, ConsentState, build_consent
from induscode.launch.settings import HOOKS, project_settings_path, user_settings_path

if TYPE_CHECKING:
    from induscode.launch.invocation import Invocation

EVENTS: Final = ("PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "SessionStart")
MOST_STOPS = 5
"""How often `Stop` hooks may make the model go on in one turn."""
_BLOCKED = 2
_DEFAULT_S, _MAX_S = 60.0, 600.0
_MAX_OUTPUT = 64 * 1024
_MAX_CONTEXT = 10_000
_MAX_BYTES = 1024 * 1024
_MAX_HOOKS = 50
_MAX_COMMAND = 4_000
_MATCHER = re.compile(r"[\w.*|-]*")
_PROJECT = "CLAUDE_PROJECT_DIR"
_CLAUDE_NAMES: Mapping[str, str] = {
    "bash": "Bash",
    "edit": "Edit",
    "write": "Write",
    "read": "Read",
    "grep": "Grep",
    "find": "Glob",
    "ls": "LS",
    "webfetch": "WebFetch",
    "websearch": "WebSearch",
    "task": "Task",
    "todo_set": "TodoWrite",
    "skill": "Skill",
}
_CLAUDE_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("edit", "write", "read"), ("path", "file_path")),
    "task": ("objective", "prompt"),
}
"""Our name of an argument, and Claude Code's, by tool."""
_MODES = {"ask": "default", "auto-edit": "acceptEdits", "all": "bypassPermissions", "plan": "plan"}


class HookError(CoreError):
    """A hook gave no answer."""


@record(kw_only=True)
class Hook:
    """One command."""

    event: str
    matcher: str
    """Tool names separated by `|`, which may have `*`; empty for all."""
    command: str
    timeout_s: float = _DEFAULT_S

    def matches(self, *names: str) -> bool:
        """Return whether it's about one of these names."""
        patterns = self.matcher.replace(".*", "*").split("|")
        return not self.matcher or any(fnmatch.fnmatchcase(name, one) for name in names for one in patterns)

    def __str__(self) -> str:
        return f"{self.event} {self.matcher or '*'}: {self.command}"


@record(kw_only=True)
class HookFile:
    """The hooks of a settings file."""

    file: str
    folder: str
    """The working directory."""
    hooks: Sequence[Hook]
    scripts: Mapping[str, bytes]
    """The project's files that the commands name."""
    is_project: bool
    consent: ConsentState = "unknown"

    @property
    def label(self) -> str:
        """Its name among addons and skills."""
        return f"hooks:{self.file.removeprefix(os.path.join(self.folder, ''))}"

    @property
    def text(self) -> str:
        """The scripts that its commands name, for a question."""
        parts = [f"--- {path}\n{data.decode('utf-8', 'replace')}" for path, data in self.scripts.items()]
        return "\n".join(parts)

    def describe(self) -> Consent:
        """Build the question about running them."""
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in self.scripts.items()}
        facts: JsonObject = {
            "hooks": [[hook.event, hook.matcher, hook.command, hook.timeout_s] for hook in self.hooks],
            "scripts": {**digests},
        }
        lines = [f"{hook} (at most {hook.timeout_s:g} s)" for hook in self.hooks]
        lines += [f"{path}: SHA-256 {digest}" for path, digest in digests.items()]
        changed = ["CHANGED since you trusted them"] if self.consent == "changed" else []
        warning = "they run without a question, in the sandbox of commands, and see every call and result"
        return build_consent(f"hooks of {self.file}", facts, (*lines, *changed), (warning,))

    def find_changed_script(self) -> str | None:
        """Return a script that the consent doesn't cover. Blocks."""
        for path, data in self.scripts.items():
            try:
                if os.path.realpath(path) != path or read_small_file(path, _MAX_BYTES) != data:
                    return path
            except OSError:
                return path
        return None


def find_hook_files(cwd: str, notes: list[Note]) -> Sequence[HookFile]:
    """Read the hooks of the user and the project, with the consent to them. Blocks."""
    workspace, home = os.path.realpath(cwd), os.path.expanduser("~")
    own = [user_settings_path(os.environ), os.path.join(home, ".claude", "settings.json")]
    names = ("settings.json", "settings.local.json")
    places = [*own, project_settings_path(workspace), *(os.path.join(workspace, ".claude", name) for name in names)]
    files: dict[str, HookFile] = {}
    store = AddonConsentStore()
    for place in places:
        real = os.path.realpath(place)
        # The user's file is the project's too if a model may write it.
        is_project = place not in own or is_within(real, workspace)
        if place not in own and real != place and os.path.lexists(place):
            notes.append(Note(f"hooks of {place}", "left out: it's a link, or in a linked folder", "copy it there"))
        elif real not in files:
            try:
                if hooks := _read_hooks(real, notes):
                    scripts = _find_scripts(hooks, workspace) if is_project else dict[str, bytes]()
                    found = HookFile(file=real, folder=workspace, hooks=hooks, scripts=scripts, is_project=is_project)
                    files[real] = replace(found, consent=store.find_consent(real, found.describe().digest))
            except (OSError, ValueError) as exc:
                notes.append(Note(f"hooks of {place}", f"left out: {describe_error(exc)}"))
    return [*files.values()]


def _read_hooks(path: str, notes: list[Note]) -> Sequence[Hook]:
    if not os.path.lexists(path):
        return ()
    document = read_config_file(path).document
    events = document.get(HOOKS) if is_json_object(document) else None
    if not is_json_object(events):
        return ()
    hooks: list[Hook] = []
    for event, groups in events.items():
        if event not in EVENTS:
            notes.append(Note(f"hooks of {path}", f"{event} is left out: there are {', '.join(EVENTS)}"))
            continue
        for group in filter(is_json_object, groups if isinstance(groups, list) else ()):
            matcher, rows = group.get("matcher") or "", group.get("hooks")
            if not isinstance(matcher, str) or _MATCHER.fullmatch(matcher) is None:
                raise ValueError(f"the matcher {matcher!r} can't be read: write names, | and *")
            rows = filter(is_json_object, rows if isinstance(rows, list) else ())
            hooks += [_read_hook(event, "" if matcher == "*" else matcher, row) for row in rows]
    if len(hooks) > _MAX_HOOKS:
        raise ValueError(f"it has more than {_MAX_HOOKS} hooks")
    return hooks


def _read_hook(event: str, matcher: str, row: JsonObject) -> Hook:
    command, seconds = row.get("command"), row.get("timeout", _DEFAULT_S)
    if row.get("type", "command") != "command" or not isinstance(command, str) or not command.strip():
        raise ValueError(f"a hook of {event} is no command")
    if len(command) > _MAX_COMMAND:
        raise ValueError(f"a command has more than {_MAX_COMMAND:,} characters: write it into a script")
    limit = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else _DEFAULT_S
    return Hook(event=event, matcher=matcher, command=command, timeout_s=min(limit, _MAX_S))


def _find_scripts(hooks: Sequence[Hook], workspace: str) -> Mapping[str, bytes]:
    """Read the project's files that the commands name; `OSError` or `ValueError` if one can't be covered."""
    scripts: dict[str, bytes] = {}
    for hook in hooks:
        command = re.sub(rf"\$\{{?(?:{_PROJECT}|PWD)\b[^}}\s\"'/]*\}}?", workspace, hook.command)
        try:
            words = [*shlex.shlex(command, posix=True, punctuation_chars=True)]
        except ValueError:
            words = command.split()
        words += [word.partition("=")[2] for word in words]
        paths = [os.path.normpath(os.path.join(workspace, os.path.expanduser(word))) for word in filter(None, words)]
        folders = [path for path in paths if os.path.isdir(path)]  # as in `cd hooks && ./guard.sh`
        paths += [os.path.normpath(os.path.join(folder, word)) for folder in folders for word in filter(None, words)]
        for path in dict.fromkeys(paths):
            if not is_within(path, workspace) or not os.path.isfile(path):
                continue
            if os.path.realpath(path) != path:  # a link could be changed without its target
                raise ValueError(f"a command names {path}, which is a link: name its target")
            scripts[path] = read_small_file(path, _MAX_BYTES)
            if len(scripts) > _MAX_HOOKS:
                raise ValueError(f"its commands name more than {_MAX_HOOKS} files")
    return dict(sorted(scripts.items()))


ProjectPart: TypeAlias = ProjectAddon | Skill | HookFile
"""A part of a project that sessions use after a yes."""


def list_project_parts(cwd: str, notes: list[Note]) -> Sequence[ProjectPart]:
    """List the addons, skills and hooks of a project. Blocks."""
    addons, skills = discover_addons(cwd), SkillSet(cwd)
    notes += [*addons.notes, *(note for note in skills.notes if not note.remedy.startswith("indus addons trust"))]
    parts = [*skills.found.values(), *find_hook_files(cwd, notes)]
    return [*addons.project, *(part for part in parts if part.is_project)]


# -- running them -----------------------------------------------------------------------------


@record
class HookAnswer:
    """The decision of a hook."""

    denial: str = ""
    """Why it denies; empty if it doesn't."""
    question: str = ""
    """Why it wants the user to be asked; empty if it doesn't."""
    context: str = ""
    """Text for the model."""
    arguments: JsonObject | None = None


class CommandHooks(Interceptor):
    """The hooks of a session. Around calls, it's an interceptor."""

    def __init__(self, invocation: Invocation, *, enabled: bool = True) -> None:
        """Find them. Blocks: call it in a thread."""
        self.notes: list[Note] = []
        self.report: Callable[[str], None] = lambda _: None
        """Receives a note about each hook that fails without deciding anything."""
        self.session = ""
        """Id of the conversation."""
        self.log = ""
        """Path of the conversation's log."""
        self.source = "startup"
        """How the session began: `startup` or `resume`."""
        self.find_mode: Callable[[], str] = lambda: invocation.approval
        """Returns the approval mode, or `plan`."""
        self._cwd = invocation.cwd
        self._shell = LocalShell(invocation.cwd, sandbox=Sandbox(mode=invocation.sandbox), has_reaper=True)
        self._directory = ""
        self._files: list[HookFile] = []
        self._has_started = False
        for found in find_hook_files(invocation.cwd, self.notes) if enabled else ():
            if found.consent == "trusted" or not found.is_project:
                self._files.append(found)
            if found.consent == "trusted":
                continue
            owner = f"hooks of {found.file}"
            if found.is_project:
                why = (
                    "they have changed since you trusted them"
                    if found.consent == "changed"
                    else "they aren't trusted yet"
                )
                self.notes.append(Note(owner, f"not run: {why}", f"indus addons trust {found.label}"))
            else:
                commands = "; ".join(map(str, found.hooks))
                self.notes.append(Note(owner, f"run in your sessions from now on: {commands}", "--no-addons"))
                try:
                    AddonConsentStore().approve(found.file, found.describe().digest)
                except OSError as exc:
                    self.notes.append(Note(owner, f"shown again next time: {describe_error(exc)}"))

    def build_addon(self) -> LoadedAddon | None:
        """Build the addon that runs them around calls, unless there are none."""
        if not self._files:
            return None
        # Each command has a time limit.
        addon = Addon(interceptors=(self,), deadline_s=_MAX_HOOKS * _MAX_S)
        return LoadedAddon("indus:hooks", "settings", addon, required=True)

    async def aclose(self) -> None:
        """Remove temporary files."""
        await self._shell.aclose()
        if self._directory:
            await to_thread.run_sync(partial(rmtree, self._directory, ignore_errors=True))

    # -- calls ------------------------------------------------------------------------------

    async def before(self, call: InterceptedCall, /) -> InterceptorDecision | None:
        """Deny a call, have the user asked about it, or change its arguments."""
        questions: list[str] = []
        arguments = call.arguments
        for found, hook in self._find("PreToolUse", *_list_names(call)):
            given = _to_claude(call, arguments)
            try:
                answer = await self._run(found, hook, {"tool_name": _list_names(call)[0], "tool_input": given}, call)
            except HookError as exc:
                return Deny(f"its hook {hook} gave no answer: {exc}")
            if answer.denial:
                return Deny(f"{answer.denial} (hook {hook.command})")
            if answer.question:
                questions.append(f"{answer.question} (hook {hook.command})")
            if answer.arguments is not None:
                arguments = _from_claude(call.tool, given, answer.arguments)
        if arguments != call.arguments and is_json_object(arguments):
            return Replace(arguments, "; ".join(questions))
        return Ask("; ".join(questions)) if questions else None

    async def after(self, call: InterceptedCall, result: ToolResult, /) -> ToolResult | None:
        """Add the context of hooks to a result."""
        if result.details.get("code") in {DENIED, REFUSED}:
            return None
        facts: JsonObject = {
            "tool_name": _list_names(call)[0],
            "tool_input": _to_claude(call, call.arguments),
            "tool_response": {"content": str(project_content(result.content)), "is_error": result.is_error},
        }
        for found, hook in self._find("PostToolUse", *_list_names(call)):
            try:
                answer = await self._run(found, hook, facts, call)
            except HookError as exc:
                self.report(f"hook {hook}: {exc}")
                continue
            for text in filter(None, (answer.denial, answer.context)):
                result = annotate(result, f"[a hook of the session says: {text}]")
        return result

    # -- the conversation -------------------------------------------------------------------

    async def check_prompt(self, prompt: str) -> tuple[str, Sequence[str]]:
        """Return why a prompt is denied, or an empty string, and facts for the model."""
        facts: list[str] = []
        if not self._has_started:
            self._has_started = True
            facts += (await self._run_all("SessionStart", {"source": self.source}))[1]
        denial, more = await self._run_all("UserPromptSubmit", {"prompt": prompt})
        return denial, [*facts, *more]

    async def check_stop(self, *, is_again: bool) -> str:
        """Return why the model should go on, or an empty string."""
        return (await self._run_all("Stop", {"stop_hook_active": is_again}))[0]

    async def _run_all(self, event: str, facts: JsonObject) -> tuple[str, Sequence[str]]:
        context: list[str] = []
        for found, hook in self._find(event):
            try:
                answer = await self._run(found, hook, facts)
            except HookError as exc:
                self.report(f"hook {hook}: {exc}")
                continue
            if answer.denial:
                return answer.denial, ()
            context += [answer.context] if answer.context else []
        return "", context

    # -- commands ---------------------------------------------------------------------------

    def _find(self, event: str, *names: str) -> Sequence[tuple[HookFile, Hook]]:
        pairs = [(found, hook) for found in self._files for hook in found.hooks if hook.event == event]
        return [(found, hook) for found, hook in pairs if not names or hook.matches(*names)]

    async def _run(
        self, found: HookFile, hook: Hook, facts: JsonObject, call: InterceptedCall | None = None
    ) -> HookAnswer:
        """Run a hook; `HookError` if it gave no answer."""
        changed = await to_thread.run_sync(found.find_changed_script)
        if changed is not None:
            raise HookError(f"{changed} has changed since you trusted it: indus addons trust {found.label}")
        given: JsonObject = {
            "session_id": self.session,
            "transcript_path": self.log,
            "cwd": self._cwd,
            "permission_mode": _MODES[self.find_mode()],
            "hook_event_name": hook.event,
            **({} if call is None else {"tool_use_id": f"call-{call.number}", "agent_id": call.agent}),
            **facts,
        }
        try:
            code, output, errors = await self._execute(hook, compact_json(given).encode("utf-8", "backslashreplace"))
        except (OSError, CoreError) as exc:
            raise HookError(describe_error(exc)) from exc
        if code == _BLOCKED:
            return HookAnswer(errors or "it gives no reason")
        if code:
            self.report(f"hook {hook}: it exited with {code}: {errors.partition(chr(10))[0]}")
            return HookAnswer()
        return _parse_answer(hook, output)

    async def _execute(self, hook: Hook, given: bytes) -> tuple[int, str, str]:
        """Run a command and return its exit code, output and errors; `HookError` at its deadline."""
        if not self._directory:
            self._directory = await to_thread.run_sync(make_owned_dir)
        path = os.path.join(self._directory, new_ulid())
        env = {_PROJECT: self._cwd}
        async with await self._shell.spawn(hook.command, env=env, with_input=True, errors_path=path) as process:
            is_done = False
            with anyio.move_on_after(hook.timeout_s), anyio.CancelScope() as full:
                process.limit_output(_MAX_BYTES, full.cancel)
                try:
                    await process.write_input(given, close=True)
                except OSError:
                    pass  # a hook needn't read its input
                await process.wait()
                is_done = True
            code = await process.stop()
            if not is_done:
                raise HookError(f"it wasn't done within {hook.timeout_s:g} s, or wrote more than {_MAX_BYTES:,} bytes")
            output = await to_thread.run_sync(process.read_output, 0, _MAX_OUTPUT)
            errors = await to_thread.run_sync(_read_start, path)
        return code, _clean(output), _clean(errors)


def _read_start(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MAX_OUTPUT)
    os.unlink(path)
    return data


def _clean(data: bytes) -> str:
    return clean_text(data.decode("utf-8", "replace"))[0].strip()


def _parse_answer(hook: Hook, output: str) -> HookAnswer:
    """Parse the output of a hook that exited with 0; `HookError` if it's broken JSON."""
    if not output.startswith("{"):
        is_context = hook.event in {"UserPromptSubmit", "SessionStart"}
        return HookAnswer(context=cut_text(output, _MAX_CONTEXT) if is_context else "")
    try:
        answer, _ = clean_json(json.loads(output))
    except (ValueError, RecursionError) as exc:
        raise HookError(f"its output is no JSON: {describe_error(exc)}") from exc
    assert is_json_object(answer)
    special = answer.get("hookSpecificOutput")
    special = special if is_json_object(special) else {}
    decision = special.get("permissionDecision") or answer.get("decision")
    reason = special.get("permissionDecisionReason") or answer.get("reason") or answer.get("stopReason")
    reason = cut_text(str(reason or "it gives no reason"), _MAX_CONTEXT)
    updated, context = special.get("updatedInput"), special.get("additionalContext")
    return HookAnswer(
        reason if decision in {"deny", "block"} or answer.get("continue") is False else "",
        reason if decision == "ask" else "",
        cut_text(context, _MAX_CONTEXT) if isinstance(context, str) else "",
        updated if is_json_object(updated) else None,
    )


# -- names and arguments ----------------------------------------------------------------------


def _list_names(call: InterceptedCall) -> tuple[str, str]:
    """Return a tool's name in Claude Code, and ours."""
    name = f"mcp__{call.tool}" if call.server is not None else _CLAUDE_NAMES.get(call.tool, call.tool)
    return name, call.tool


def _to_claude(call: InterceptedCall, arguments: JsonValue) -> JsonObject:
    """Add the arguments of Claude Code's tool to ours."""
    if not is_json_object(arguments):
        return {}
    given: JsonObject = {**arguments}
    ours, theirs = _CLAUDE_ARGUMENTS.get(call.tool, ("", ""))
    if isinstance(value := arguments.get(ours), str):
        path = os.path.normpath(os.path.join(call.cwd, os.path.expanduser(value)))
        given[theirs] = path if ours == "path" else value
    edits = arguments.get("edits")
    if call.tool == "edit" and isinstance(edits, list) and len(edits) == 1 and is_json_object(edits[0]):
        given |= {"old_string": edits[0].get("oldText"), "new_string": edits[0].get("newText")}
    return given


def _from_claude(tool: str, given: JsonObject, updated: JsonObject) -> JsonObject:
    """Convert changed arguments of Claude Code's tool to ours."""
    ours, theirs = _CLAUDE_ARGUMENTS.get(tool, ("", ""))
    added = {theirs, "old_string", "new_string"} if tool == "edit" else {theirs}
    arguments: JsonObject = {name: value for name, value in updated.items() if name not in added}
    if theirs in updated and updated[theirs] != given.get(theirs):
        arguments[ours] = updated[theirs]
    texts = [updated.get(name) for name in ("old_string", "new_string")]
    if tool == "edit" and "old_string" in updated and texts != [given.get("old_string"), given.get("new_string")]:
        arguments["edits"] = [{"oldText": texts[0], "newText": texts[1]}]
    return arguments
