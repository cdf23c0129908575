"""Variables in a configuration, by the rule of whoever wrote the file.

Each dialect has its own way to write a variable. What is not set is never taken for an empty text:
the row says which variable is missing, and is not used.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

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
_LARGEST_FILE = 64 * 1024


class UnresolvedVariableError(Exception):
    """A variable that has no value here."""


@dataclass(frozen=True, slots=True)
class ExpansionContext:
    """What variables can stand for."""

    environ: Mapping[str, str]
    folder: str
    """The project, or the folder of the file."""

    def variable(self, name: str, default: str | None = None) -> str:
        """Give the value of a variable.

        Raises:
            UnresolvedVariableError: It is not set, and there is no default.
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
        """Give the content of a small file, without the newline at its end.

        Raises:
            UnresolvedVariableError: It cannot be read.
        """
        whole = os.path.join(self.folder, os.path.expanduser(path))
        try:
            if not os.path.isfile(whole) or os.path.getsize(whole) > _LARGEST_FILE:
                raise UnresolvedVariableError(f"the file {path} is not there, or no small file")
            with open(whole, encoding="utf-8") as file:
                return file.read().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as exc:
            raise UnresolvedVariableError(f"the file {path} cannot be read: {exc}") from exc


def expand(text: str, rule: Expansion, here: ExpansionContext) -> str:
    """Put values in the place of variables.

    Raises:
        UnresolvedVariableError: One has no value.
    """
    return _PATTERNS[rule].sub(lambda found: _value(rule, found, here), text)


def reference_pattern(rule: Expansion) -> re.Pattern[str]:
    """Give the pattern of a reference: what `expand` replaces, and nothing else."""
    return _PATTERNS[rule]


def parse_reference(rule: Expansion, found: re.Match[str]) -> tuple[str, bool]:
    """Give what a reference names, and whether that is a file and not a variable."""
    if rule == "dollar":
        return found[1] or found[3], False
    if rule == "editor":
        return found[2] or found[1], False
    if rule == "braces":
        return found[2].strip(), found[1] == "file"
    return found[1], False


def _value(rule: Expansion, found: re.Match[str], here: ExpansionContext) -> str:
    if rule == "editor":
        return _editor_value(found[1], found[2], here)
    if rule == "braces":
        return here.variable(found[2]) if found[1] == "env" else here.file(found[2].strip())
    name, _ = parse_reference(rule, found)
    return here.variable(name, found[2])


def _editor_value(kind: str, name: str | None, here: ExpansionContext) -> str:
    if kind == "env" and name:
        return here.variable(name)
    if kind == "input" and name:
        raise UnresolvedVariableError(f"the input {name!r} is asked for by an editor")
    values = {
        "userHome": here.environ.get("HOME", ""),
        "workspaceFolder": here.folder,
        "workspaceRoot": here.folder,
        "workspaceFolderBasename": os.path.basename(here.folder),
        "pathSeparator": os.sep,
    }
    known = values.get(kind)
    if known:
        return known
    raise UnresolvedVariableError(f"${{{kind}}} has no value here")
