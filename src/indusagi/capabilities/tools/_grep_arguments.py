"""The arguments of `grep` as other agents, and the program of that name, call them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.capabilities.tools.paths import PATH_ALIASES

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

ALIASES = {
    **PATH_ALIASES,
    "output_mode": "mode",
    "include": "glob",
    "max_matches": "maxMatches",
    "head_limit": "maxMatches",
    "no_ignore": "noIgnore",
    "fixed_strings": "literal",
    "-A": "after",
    "-B": "before",
    "-C": "context",
}
_MODES = {"files_with_matches": "files", "filesWithMatches": "files"}
_ANY_CASE = {
    **dict.fromkeys(("-i", "ignoreCase", "ignore_case"), True),
    **dict.fromkeys(("caseInsensitive", "case_insensitive"), True),
    **dict.fromkeys(("caseSensitive", "case_sensitive"), False),
}
"""Truth values about upper and lower case, and which one means that it does not count."""
_ALWAYS = ("-n", "lineNumbers", "line_numbers")
"""What is done whatever is said."""


def in_our_words(arguments: JsonValue) -> JsonValue:
    """Say in the tool's own words what was said in those of others."""
    if not isinstance(arguments, dict):
        return arguments
    given = {name: value for name, value in arguments.items() if name not in _ALWAYS}
    mode, flags = given.get("mode"), given.get("flags")
    if isinstance(mode, str):
        given["mode"] = _MODES.get(mode, mode)
    if isinstance(flags, str):
        given["flags"] = flags.replace("-", "")
    return _with_case(given)


def _with_case(given: JsonObject) -> JsonObject:
    said = [name for name in _ANY_CASE if isinstance(given.get(name), bool)]
    rest = {name: value for name, value in given.items() if name not in said}
    flags = rest.get("flags", "")
    if isinstance(flags, str) and any(given[name] is _ANY_CASE[name] for name in said):
        rest["flags"] = f"{flags}i"
    return rest
