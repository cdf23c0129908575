"""Rules: `tool` or `tool(specifier)`, each with its effect, where it comes from and where it holds.

A rule that denies or asks and cannot be read asks about everything: what somebody wanted to keep
from running does not run because of a typing error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.core.notes import Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.core.json import JsonValue

_RULE = re.compile(r"([A-Za-z0-9_*?-]{1,128})(?:\((.*)\))?", re.DOTALL)
_COMMAND_TOOLS = frozenset({"bash", "process", "bg-process"})
_LONGEST_RULE = 4_096
_MOST_SIGNS = 6
"""With more of them it takes too long to find that a long path is not meant."""


class Effect(StrEnum):
    """What a rule does; the strictest of all that match wins."""

    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class RuleOrigin(StrEnum):
    """Who made a rule."""

    FLAG = "command line"
    USER = "user"
    PROJECT = "project"
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule."""

    effect: Effect
    tool: str
    specifier: str | None = None
    origin: RuleOrigin = RuleOrigin.USER
    file: str | None = None
    workspace: str | None = None
    """Where it holds; everywhere if None."""
    server: str | None = None
    """Whose tools it is about; anybody's if None."""
    pin: str | None = None
    """Which definition of the tool was meant; any if None."""

    def __str__(self) -> str:
        return self.tool if self.specifier is None else f"{self.tool}({self.specifier})"

    @property
    def told(self) -> str:
        """The rule as a reason: what it says, and who says it."""
        whose = self.file or f"the {self.origin.value}"
        return f"{self.effect.value} {self} ({whose})"

    def names(self, tool: str) -> bool:
        """Tell whether it is about a tool of this name."""
        return self._name_pattern().fullmatch(tool) is not None

    def _name_pattern(self) -> re.Pattern[str]:
        text = re.escape(self.tool).replace(r"\*", ".*").replace(r"\?", ".")
        return re.compile(text)


def parse_rule(text: str, effect: Effect, origin: RuleOrigin = RuleOrigin.USER, file: str | None = None) -> Rule | Note:
    """Read a rule; a note says what is wrong with it, in which file, and how it is written."""
    owner = f"rule {text!r}" + (f" in {file}" if file else "")
    found = _RULE.fullmatch(text.strip()) if len(text) <= _LONGEST_RULE else None
    if found is None:
        return Note(owner, "is no rule", "write tool or tool(specifier), as in bash(git status *)")
    tool, specifier = found.groups()
    problem = None if specifier is None else _problem(tool, specifier)
    if problem is not None:
        return Note(owner, *problem)
    return Rule(effect=effect, tool=tool, specifier=specifier, origin=origin, file=file)


def _problem(tool: str, specifier: str) -> tuple[str, str] | None:
    """Say what is wrong with a specifier, and what would be right."""
    if not specifier.strip():
        return "has nothing in its brackets", f"write {tool} alone to mean every call"
    if any(not char.isprintable() for char in specifier):
        return "holds characters that cannot be seen", "write it anew"
    if specifier.replace("**", "*").count("*") > _MOST_SIGNS:
        return "has too many stars", f"use {_MOST_SIGNS} at most"
    if tool in _COMMAND_TOOLS and re.search(r"[;&|<>`$\\]", specifier):
        return "is about one command only", "write a rule for each: bash(git status *)"
    if tool in _COMMAND_TOOLS and "*" in command_words(specifier)[0][:1]:
        return "names no command", "begin with its name, or write bash(*)"
    if tool == "webfetch" and not re.fullmatch(r"domain:[A-Za-z0-9.*-]+", specifier):
        return "is not about a domain", "write webfetch(domain:example.org)"
    if tool == "websearch":
        return "has brackets", "write websearch alone"
    return None


def command_words(specifier: str) -> tuple[tuple[str, ...], bool]:
    """Split the pattern of a command into words, and tell whether anything may follow."""
    text = specifier.strip()
    if text.endswith(":*"):
        text = f"{text[:-2]} *"
    words = tuple(text.split())
    if words[:1] == ("[",):
        words = ("test", *(word for word in words[1:] if word != "]"))
    return (words[:-1], True) if words[-1:] == ("*",) else (words, False)


def parse_rules(
    texts: Iterable[str], effect: Effect, origin: RuleOrigin, file: str | None = None
) -> tuple[list[Rule], list[Note]]:
    """Read several rules; one that was to keep something from running asks about everything."""
    rules: list[Rule] = []
    notes: list[Note] = []
    for text in texts:
        rule = parse_rule(text, effect, origin, file)
        if isinstance(rule, Rule):
            rules.append(rule)
            continue
        notes.append(rule)
        if effect is not Effect.ALLOW:
            rules.append(Rule(effect=Effect.ASK, tool="*", origin=origin, file=file))
    return rules, notes


def rules_from_settings(settings: JsonValue, file: str, origin: RuleOrigin) -> tuple[list[Rule], list[Note]]:
    """Read `{"allow": […], "ask": […], "deny": […]}`; a project has no say in what is allowed."""
    rules: list[Rule] = []
    notes: list[Note] = []
    if not is_json_object(settings):
        notes.append(Note(file, "its rules are no object", "write allow, ask and deny in it"))
        return [Rule(effect=Effect.ASK, tool="*", origin=origin, file=file)], notes
    for effect in Effect:
        texts = _texts(settings.get(effect.value))
        if effect is Effect.ALLOW and origin is RuleOrigin.PROJECT:
            notes += [
                Note(f"rule {text!r} in {file}", "left out: a project cannot allow anything", f"--allow {text!r}")
                for text in texts or ()
            ]
            continue
        if texts is None:
            message = f"{effect.value!r} must be a list of rules"
            notes.append(Note(file, message, 'write ["bash(git clean *)"]'))
            if effect is not Effect.ALLOW:
                rules.append(Rule(effect=Effect.ASK, tool="*", origin=origin, file=file))
            continue
        found, said = parse_rules(texts, effect, origin, file)
        rules += found
        notes += said
    unknown = sorted(set(settings) - set(Effect))
    notes += [Note(file, f"{name!r} is not known among its rules") for name in unknown]
    return rules, notes


def _texts(value: JsonValue) -> Sequence[str] | None:
    if value is None:
        return ()
    if not isinstance(value, list):
        return None
    texts = [item for item in value if isinstance(item, str)]
    return texts if len(texts) == len(value) else None
