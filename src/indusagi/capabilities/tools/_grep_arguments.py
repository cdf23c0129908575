"""The arguments of `grep` as other agents, and the program of that name, call them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.capabilities.backends import FileKind
from indusagi.capabilities.tools.paths import PATH_ALIASES

if TYPE_CHECKING:
    from indusagi.capabilities.backends import Fs
    from indusagi.capabilities.search.request import Search
    from indusagi.core.json import JsonObject, JsonValue

ALIASES = {
    **PATH_ALIASES,
    "query": "pattern",
    "regex": "pattern",
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
_ALL_OF = re.compile(r"/?(?P<folder>(?:[^/*?\[\]{}\\!]+/)*)\*\*(?:/\*+)?|\*")
"""A glob for everything, or for all that lies in one directory."""


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


async def narrowed(search: Search, path: str, fs: Fs) -> tuple[Search, str]:
    """Take a glob for all that lies in a directory, as `packages/**` is, for a path.

    To ripgrep what a glob names is meant even if it is ignored, so that such a one would bring in
    every `node_modules` below.
    """
    found = _ALL_OF.fullmatch(search.glob or "")
    if found is None:
        return search, path
    if found["folder"]:
        path_of_all = os.path.join(path, found["folder"])
        try:
            if (await fs.stat(path_of_all)).kind is not FileKind.DIRECTORY:
                return search, path
        except OSError:
            return search, path
        path = path_of_all
    return replace(search, glob=None), path
