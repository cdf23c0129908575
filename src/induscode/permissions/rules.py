"""Permission rules: `tool` or `tool(specifier)`, with ` @principal` for particular clients of a gateway.

The specifier of a server's tool is about its arguments: `github__create_issue(repo=acme/*)`.

An invalid deny or ask rule becomes a rule that asks about everything, so that a typo never lets a call run that a rule
was meant to stop.

The user's "always" rules are in one private file outside any project. Writers lock its directory, and readers see
either the old file or the new one. The next change sets a damaged file aside; until then, every call needs the user's
permission. A project can deny calls, or require a question, in `.indusvx/permissions.json`:
`{"deny": ["bash(git push *)"], "ask": ["write(migrations/**)"]}`. It can't allow anything.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache

from indusagi.core.app_dirs import PrivateJsonFile, read_small_file, state_dir
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.contract import QUALIFIER
from induscode.deck.contract import SECOND_NAMES
from induscode.permissions.argument_patterns import parse_argument_patterns

_RULE = re.compile(r"([A-Za-z0-9_*?-]{1,128})(?:\((.*)\))?(?: +@([!-~]{1,255}))?", re.DOTALL)
ACTION_TOOL = "saas-action"
_ACTION = re.compile(r"(?:(?P<method>[A-Z]{3,10}) )?domain:(?P<host>[A-Za-z0-9.*:-]+)|slug:(?P<slug>[A-Za-z0-9_.*?-]+)")
_COMMAND_TOOLS = frozenset({"bash", "process", "bg-process"})
_MAX_RULE_CHARS = 4_096
_MAX_STARS = 6
"""With more, a mismatch with a long path takes too long."""


class Effect(StrEnum):
    """Effect of a rule. The strictest matching rule wins."""

    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class RuleOrigin(StrEnum):
    """Source of a rule."""

    FLAG = "command line"
    USER = "user"
    PROJECT = "project"
    SESSION = "session"


@record(kw_only=True)
class Rule:
    """A permission rule. A scope of `None` means all."""

    effect: Effect
    tool: str
    specifier: str | None = None
    origin: RuleOrigin = RuleOrigin.USER
    file: str | None = None
    workspace: str | None = None
    server: str | None = None
    pin: str | None = None
    """Pin of the tool definition."""
    principal: str | None = None
    """Pattern for principals of a gateway. `None` includes calls without one."""

    def __str__(self) -> str:
        text = self.tool if self.specifier is None else f"{self.tool}({self.specifier})"
        return text if self.principal is None else f"{text} @{self.principal}"

    @property
    def reason(self) -> str:
        """The rule with its effect and origin, for messages."""
        return f"{self.effect.value} {self} ({self.file or f'the {self.origin.value}'})"

    def names(self, tool: str) -> bool:
        """Return whether the rule names a tool, by its name or its second name."""
        return any(match_glob(self.tool, name) for name in (tool, SECOND_NAMES.get(tool, tool)))


@lru_cache(maxsize=4096)
def match_glob(pattern: str, text: str) -> bool:
    """Match a whole text against a pattern with `*` and `?`."""
    regex = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(regex, text, re.DOTALL) is not None


def ask_about_everything(origin: RuleOrigin, file: str | None) -> Rule:
    """Return the rule that stands in for unreadable rules."""
    return Rule(effect=Effect.ASK, tool="*", origin=origin, file=file)


def split_command_pattern(specifier: str) -> tuple[tuple[str, ...], bool]:
    """Split the specifier of a command rule into its words and whether more words may follow."""
    text = specifier.strip()
    if text.endswith(":*"):
        text = f"{text[:-2]} *"
    words = tuple(text.split())
    if words[:1] == ("[",):
        words = ("test", *(word for word in words[1:] if word != "]"))
    return (words[:-1], True) if words[-1:] == ("*",) else (words, False)


def parse_action_pattern(specifier: str) -> tuple[str | None, str | None, str | None] | None:
    """Parse an action rule's specifier into method, host and slug pattern, or return `None` for another form."""
    action, comma, conditions = specifier.partition(",")
    match = _ACTION.fullmatch(action)
    if match is None or (comma and parse_argument_patterns(conditions) is None):
        return None
    return match["method"], match["host"], match["slug"]


def parse_rule(text: str, effect: Effect, origin: RuleOrigin = RuleOrigin.USER, file: str | None = None) -> Rule | Note:
    """Parse a rule, or return a note with the file, the mistake and the correct form."""
    owner = f"rule {text!r}" + (f" in {file}" if file else "")
    match = _RULE.fullmatch(text.strip()) if len(text) <= _MAX_RULE_CHARS else None
    if match is None:
        return Note(owner, "is not a rule", "write tool or tool(specifier), as in bash(git status *)")
    tool, specifier, principal = match.groups()
    problem = None if specifier is None else _find_mistake(tool, specifier)
    # A deny or ask rule of another form has always applied to every call of the tool.
    if specifier is not None and effect is Effect.ALLOW and QUALIFIER in tool:
        if parse_argument_patterns(specifier) is None:
            problem = "names no argument", f"write {tool}(name=pattern)"
    if problem is not None:
        return Note(owner, *problem)
    return Rule(effect=effect, tool=tool, specifier=specifier, origin=origin, file=file, principal=principal)


def _find_mistake(tool: str, specifier: str) -> tuple[str, str] | None:
    """Return the mistake in a specifier and its correction."""
    if not specifier.strip():
        return "has nothing in its brackets", f"write {tool} alone to mean every call"
    if any(not char.isprintable() for char in specifier):
        return "has invisible characters", "type it again"
    if specifier.replace("**", "*").count("*") > _MAX_STARS:
        return "has too many stars", f"use {_MAX_STARS} at most"
    if tool in _COMMAND_TOOLS and re.search(r"[;&|<>`$\\]", specifier):
        return "is about one command only", "write a rule for each: bash(git status *)"
    if tool in _COMMAND_TOOLS and "*" in split_command_pattern(specifier)[0][:1]:
        return "does not name a command", "start with its name, or write bash(*)"
    if tool == "webfetch" and not re.fullmatch(r"domain:[A-Za-z0-9.*-]+", specifier):
        return "is not about a domain", "write webfetch(domain:example.org)"
    if tool == ACTION_TOOL and parse_action_pattern(specifier) is None:
        return "does not name an action", f"write {ACTION_TOOL}(GET domain:example.org) or {ACTION_TOOL}(slug:NAME_*)"
    if tool == "websearch":
        return "has brackets", "write websearch alone"
    return None


def parse_rules(
    texts: Iterable[str], effect: Effect, origin: RuleOrigin, file: str | None = None
) -> tuple[list[Rule], list[Note]]:
    """Parse several rules. An invalid deny or ask rule becomes one that asks about everything."""
    rules: list[Rule] = []
    notes: list[Note] = []
    for text in texts:
        rule = parse_rule(text, effect, origin, file)
        if isinstance(rule, Rule):
            rules.append(rule)
            continue
        notes.append(rule)
        if effect is not Effect.ALLOW:
            rules.append(ask_about_everything(origin, file))
    return rules, notes


def parse_settings(settings: JsonValue, file: str, origin: RuleOrigin) -> tuple[list[Rule], list[Note]]:
    """Parse `{"allow": […], "ask": […], "deny": […]}`, ignoring the `allow` rules of a project."""
    if not is_json_object(settings):
        note = Note(file, "its rules are not an object", "write allow, ask and deny in it")
        return [ask_about_everything(origin, file)], [note]
    rules: list[Rule] = []
    notes: list[Note] = []
    for effect in Effect:
        value = settings.get(effect.value)
        items = value if isinstance(value, list) else []
        texts: Sequence[str] = [item for item in items if isinstance(item, str)]
        is_valid = value is None or (isinstance(value, list) and len(texts) == len(items))
        if effect is Effect.ALLOW and origin is RuleOrigin.PROJECT:
            notes += [
                Note(f"rule {text!r} in {file}", "left out: a project cannot allow anything", f"--allow {text!r}")
                for text in texts
                if is_valid
            ]
            continue
        if not is_valid:
            notes.append(Note(file, f"{effect.value!r} must be a list of rules", 'write ["bash(git clean *)"]'))
            if effect is not Effect.ALLOW:
                rules.append(ask_about_everything(origin, file))
            continue
        parsed, problems = parse_rules(texts, effect, origin, file)
        rules += parsed
        notes += problems
    unknown = sorted(set(settings) - set(Effect))
    notes += [Note(file, f"its rules have an unknown key {name!r}") for name in unknown]
    return rules, notes


# -- stored rules -------------------------------------------------------------------------------

_FILE_NAME = "permissions.json"
_VERSION = 1
_MAX_BYTES = 4 * 1024 * 1024
_MAX_PROJECT_BYTES = 1024 * 1024


def rules_path() -> str:
    """Return the path of the user's rules. Raises `OSError` without a home directory."""
    return os.path.join(state_dir(), _FILE_NAME)


def project_rules_path(cwd: str) -> str:
    """Return the path of a project's rules."""
    return os.path.join(cwd, ".indusvx", _FILE_NAME)


def has_rules(cwd: str) -> bool:
    """Return whether either file exists, even if damaged."""
    if os.path.lexists(project_rules_path(cwd)):
        return True
    try:
        return os.path.lexists(rules_path())
    except OSError:
        return False


def load_startup_rules(store: RuleStore, cwd: str) -> tuple[Sequence[Rule], Sequence[Note]]:
    """Load the user's and the project's rules. An unreadable file becomes a rule that asks about everything."""
    rules, notes = store.load()
    path = project_rules_path(cwd)
    try:
        settings: JsonValue = json.loads(read_small_file(path, _MAX_PROJECT_BYTES, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        return rules, notes
    except (OSError, ValueError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not JSON"
        note = Note(path, f"its rules cannot be read: {reason}", "until it's fixed, every call needs your permission")
        return (*rules, ask_about_everything(RuleOrigin.PROJECT, path)), (*notes, note)
    project_rules, problems = parse_settings(settings, path, RuleOrigin.PROJECT)
    return (*rules, *project_rules), (*notes, *problems)


class RuleStore:
    """The user's "always" rules. The methods block: call them in a thread."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """Path of the file. Raises `OSError` without a home directory."""
        return self._path or rules_path()

    def _file(self) -> PrivateJsonFile[list[JsonObject]]:
        return PrivateJsonFile(self.path, _MAX_BYTES, _parse_rows, lambda rows: {"version": _VERSION, "rules": [*rows]})

    def load(self) -> tuple[Sequence[Rule], Sequence[Note]]:
        """Load the rules. An unreadable row or file becomes a rule that asks about everything."""
        try:
            path = self.path
        except OSError:
            return (), ()
        rows, damaged = self._file().read()
        rules: list[Rule] = []
        notes: list[Note] = []
        if damaged:
            notes.append(Note(path, "it cannot be read", "it is set aside at the next change"))
            rules.append(ask_about_everything(RuleOrigin.USER, path))
        for row in rows:
            rule = parse_rule_row(row, path)
            if isinstance(rule, Note):
                notes.append(rule)
                rule = ask_about_everything(RuleOrigin.USER, path)
            rules.append(rule)
        return tuple(rules), tuple(notes)

    def add(self, rules: Iterable[Rule]) -> None:
        """Store rules, without duplicates, or raise `OSError`."""
        with self._file().change() as rows:
            for rule in rules:
                row: JsonObject = {**dump_rule(rule), "at": iso_utc(now_ms())}
                if {**row, "at": None} not in [{**old, "at": None} for old in rows]:
                    rows.append(row)

    def remove(self, rule: Rule) -> int:
        """Remove the rows with the effect, text and scope of a rule, and return their number, or raise `OSError`."""
        facts = dump_rule(rule)
        with self._file().change() as rows:
            kept = [row for row in rows if any(row.get(key) != value for key, value in facts.items())]
            count = len(rows) - len(kept)
            rows[:] = kept
        return count


def dump_rule(rule: Rule) -> JsonObject:
    """Convert a rule to a row for `parse_rule_row`."""
    return {
        "effect": rule.effect.value,
        "rule": str(rule),
        "workspace": rule.workspace,
        "server": rule.server,
        "pin": rule.pin,
    }


def parse_rule_row(row: JsonObject, path: str) -> Rule | Note:
    """Parse a row of the file `path`, or return a note about its mistake."""
    text, effect = row.get("rule"), row.get("effect")
    if not isinstance(text, str) or effect not in set(Effect):
        return Note(path, f"a row is not a rule: {json.dumps(row)[:200]}", "remove the row")
    rule = parse_rule(text, Effect(str(effect)), RuleOrigin.USER, path)
    if isinstance(rule, Note):
        return rule
    scope: dict[str, str | None] = {}
    for name in ("workspace", "server", "pin"):
        value = row.get(name)
        if value is not None and not isinstance(value, str):
            return Note(path, f"rule {text!r} does not say where it holds", "remove the row")
        scope[name] = value
    return replace(rule, **scope)


def _parse_rows(document: JsonValue) -> tuple[list[JsonObject], bool]:
    """Return the rows of the file, and whether it's damaged."""
    rows = document.get("rules") if is_json_object(document) else None
    if not isinstance(rows, list):
        return [], True
    objects = [row for row in rows if is_json_object(row)]
    return objects, len(objects) != len(rows)
