"""Expands variables in a configuration by the rules of the program that owns the file.

Each dialect has its own variable syntax. An unset variable never becomes an empty string: the row is skipped, and a
note names the variable.
"""

from __future__ import annotations

import os
import re
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

Expansion: TypeAlias = Literal["none", "shell", "dollar", "editor", "braces"]
"""`shell`: `${X}` and `${X:-y}`; `dollar`: also `$X`; `editor`: `${env:X}`, `${userHome}`, …;
`braces`: `{env:X}` and `{file:path}`."""

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_SHELL = re.compile(rf"\$\{{({_NAME})(?::-([^}}]*))?\}}")
_DOLLAR = re.compile(rf"\$\{{({_NAME})(?::-([^}}]*))?\}}|\$({_NAME})")
_EDITOR = re.compile(r"\$\{([A-Za-z]+)(?::([^}]*))?\}")
_BRACES = re.compile(r"\{(env|file):([^}]*)\}")
_NOTHING = re.compile(r"(?!)")
_PATTERNS: dict[Expansion, re.Pattern[str]] = {
    "none": _NOTHING,
    "shell": _SHELL,
    "dollar": _DOLLAR,
    "editor": _EDITOR,
    "braces": _BRACES,
}
_MAX_FILE_BYTES = 64 * 1024


class UnresolvedVariableError(Exception):
    """A variable or file without a value."""


@record
class ExpansionContext:
    """The lookup context for variables and files."""

    environ: Mapping[str, str]
    folder: str
    """The project directory, or the directory of the file."""
    contents: dict[str, str] = field(default_factory=dict[str, str])
    """File contents by path. Each file is read once, so the content used is the content consented to."""

    def variable(self, name: str, default: str | None = None) -> str:
        """Return a variable's value, or the default if it's empty or unset.

        Raises:
            UnresolvedVariableError: It's unset and has no default.
        """
        value = self.environ.get(name)
        if value:
            return value
        if default is not None:
            return default
        if value is None:
            raise UnresolvedVariableError(f"the variable {name} is not set")
        return value

    def file(self, path: str) -> str:
        """Return the content of a small file, without its final newline.

        Raises:
            UnresolvedVariableError: It can't be read.
        """
        whole = os.path.join(self.folder, os.path.expanduser(path))
        if whole in self.contents:
            return self.contents[whole]
        try:
            if not os.path.isfile(whole) or os.path.getsize(whole) > _MAX_FILE_BYTES:
                raise UnresolvedVariableError(f"the file {path} is absent, or not a small file")
            with open(whole, encoding="utf-8") as file:
                return self.contents.setdefault(whole, file.read().removesuffix("\n"))
        except (OSError, UnicodeDecodeError) as exc:
            raise UnresolvedVariableError(f"the file {path} cannot be read: {exc}") from exc


def expand(text: str, rule: Expansion, context: ExpansionContext) -> str:
    """Replace variables with their values; raises `UnresolvedVariableError` if one has none."""
    return _PATTERNS[rule].sub(lambda match: _find_value(rule, match, context), text)


def reference_pattern(rule: Expansion) -> re.Pattern[str]:
    """Return the pattern of the references `expand` replaces."""
    return _PATTERNS[rule]


def parse_reference(rule: Expansion, match: re.Match[str]) -> tuple[str, bool]:
    """Return the name in a reference, and whether it's a file instead of a variable."""
    if rule == "dollar":
        return match[1] or match[3], False
    if rule == "editor":
        return match[2] or match[1], False
    if rule == "braces":
        return match[2].strip(), match[1] == "file"
    return match[1], False


def _find_value(rule: Expansion, match: re.Match[str], context: ExpansionContext) -> str:
    if rule == "braces":
        return context.variable(match[2]) if match[1] == "env" else context.file(match[2].strip())
    if rule != "editor":
        return context.variable(parse_reference(rule, match)[0], match[2])
    # VS Code variables: https://code.visualstudio.com/docs/reference/variables-reference
    kind, name = match[1], match[2]
    if kind == "env" and name:
        return context.variable(name)
    if kind == "input" and name:
        raise UnresolvedVariableError(f"the input {name!r} is asked for by an editor")
    values = {
        "userHome": context.environ.get("HOME", ""),
        "workspaceFolder": context.folder,
        "workspaceRoot": context.folder,
        "workspaceFolderBasename": os.path.basename(context.folder),
        "pathSeparator": os.sep,
    }
    known = values.get(kind)
    if known:
        return known
    raise UnresolvedVariableError(f"${{{kind}}} has no value here")
