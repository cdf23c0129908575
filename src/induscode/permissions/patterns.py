"""Matching of rules against commands, paths, hosts and remote tools.

Each match comes in two forms. To allow, the value must match the pattern exactly. To deny or ask, it's enough that the
pattern may apply: other spellings, options in between, anything below a directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from indusagi.interop.protocol_bridge.contract import QUALIFIER, RemoteToolRef, qualify_tool_name
from induscode.permissions.argument_patterns import match_text
from induscode.permissions.rules import match_glob, parse_action_pattern, split_command_pattern
from induscode.permissions.shell.arguments import Problem, find_problem
from induscode.permissions.shell.launchers import base_name

if TYPE_CHECKING:
    from induscode.permissions.shell.parse import Command
    from induscode.permissions.shell.syntax import Word


class PatternMatch(IntEnum):
    """Whether a pattern applies."""

    NO = 0
    MAYBE = 1
    YES = 2


# -- commands -----------------------------------------------------------------------------------


def match_command(specifier: str, command: Command) -> frozenset[int] | None:
    """Return the indexes of the words that a pattern spells out, or `None` if it doesn't match.

    A `*` at the end of a pattern matches any further words without spelling them out.
    """
    pattern, more = split_command_pattern(specifier)
    if len(command.words) < len(pattern) or (not more and len(command.words) > len(pattern)):
        return None
    pairs = list(zip(pattern, command.words, strict=False))
    if not all(word.text is not None and match_text(part, word.text) for part, word in pairs):
        return None
    return frozenset(index for index, (part, word) in enumerate(pairs) if "*" not in part and not word.glob)


def find_allow_problem(specifier: str | None, command: Command) -> Problem | None:
    """Return the problem that keeps a matching rule from allowing a command, or `None` if it does.

    A rule for every command (`bash`, `bash(*)`) also allows arguments that are merely unknown.
    """
    named = frozenset[int]() if specifier is None else match_command(specifier, command)
    assert named is not None, "the rule is about another command"
    problem = find_problem(command.words, named, fed=command.fed)
    names_all = specifier is None or split_command_pattern(specifier) == ((), True)
    return None if problem is not None and names_all and not problem.acts else problem


def may_be_command(specifier: str, command: Command) -> PatternMatch:
    """Return whether a pattern may match a command, whatever words follow."""
    pattern, _ = split_command_pattern(specifier)
    if not pattern:
        return PatternMatch.YES
    name, *rest = command.words
    first = PatternMatch.MAYBE if name.hole or name.glob else PatternMatch.NO
    if any(_match_program(base_name(pattern[0]), base_name(guess), glob=name.glob) for guess in name.guesses):
        first = PatternMatch.YES
    if first is PatternMatch.NO:
        return PatternMatch.NO
    if first is PatternMatch.MAYBE and not name.single:
        return PatternMatch.MAYBE  # it may expand to several words
    options = [part for part in pattern[1:] if part.startswith("-")]
    operands = [part for part in pattern[1:] if not part.startswith("-")]
    return min(first, _match_options(options, rest), _match_operands(operands, rest))


def may_be_program(specifier: str, word: Word) -> bool:
    """Return whether a word may be the pattern's program, in any directory."""
    pattern, _ = split_command_pattern(specifier)
    program = base_name(pattern[0])
    names = [part for guess in word.guesses for part in re.split(r"[\s=:]+", guess) if part]
    return any(_match_program(program, base_name(name), glob=word.glob) for name in names)


def _match_program(pattern: str, name: str, *, glob: bool) -> bool:
    """Match a program name. The shell may expand a name with a `glob` to the pattern."""
    return match_text(pattern, name, fold=True) or (glob and fnmatchcase(pattern, name))


def _match_options(options: Sequence[str], words: Sequence[Word]) -> PatternMatch:
    """Look for options at any position, with short ones bundled or separate."""
    texts = [guess for word in words for guess in word.guesses if guess.startswith("-")]
    letters = {letter for text in texts if not text.startswith("--") for letter in text[1:]}
    initials = {text[2:3] for text in texts if text.startswith("--")}
    has_hole = any(word.text is None or word.glob for word in words)
    result = PatternMatch.YES
    for option in options:
        if option.startswith("--"):
            # Programs accept unambiguous abbreviations of long options: getopt_long(3).
            names = [text.partition("=")[0] for text in texts]
            is_named = any(name == option or (len(name) > 3 and option.startswith(name)) for name in names)
            is_given = is_named or any(match_text(option, text) for text in texts)
            may_be_same = option[2:3].casefold() in {letter.casefold() for letter in letters}
        else:
            is_given = option in texts or set(option[1:]) <= letters
            may_be_same = set(option[1:].casefold()) <= {letter.casefold() for letter in letters | initials}
        if is_given:
            continue
        # `-f` and `--force` are often the same, but only the program knows.
        if not has_hole and not may_be_same:
            return PatternMatch.NO
        result = PatternMatch.MAYBE
    return result


def _match_operands(parts: Sequence[str], words: Sequence[Word]) -> PatternMatch:
    """Look for words in this order, with nothing but options and their values in between."""
    positions = {0}
    has_hole = False
    for part in parts:
        # The next operand may follow options, their values, and empty words.
        reachable: set[int] = set()
        waiting = list(positions)
        while waiting:
            index = waiting.pop()
            if index >= len(words) or index in reachable:
                continue
            reachable.add(index)
            if any(guess.startswith("-") for guess in words[index].guesses):
                waiting += [index + 1, index + 2]
            if "" in words[index].guesses:
                waiting.append(index + 1)
        has_hole = has_hole or any(words[index].text is None for index in reachable)
        positions = {
            index + 1
            for index in reachable
            if any(match_text(part, guess, fold=True) for guess in words[index].guesses)
        }
        if not positions:
            return PatternMatch.MAYBE if has_hole else PatternMatch.NO
    return PatternMatch.YES


# -- paths --------------------------------------------------------------------------------------


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern can match more than one path."""
    return any(char in pattern for char in "*?")


def is_absolute(pattern: str) -> bool:
    """Return whether a pattern is independent of the workspace."""
    return pattern.startswith(("/", "~"))


def is_path(pattern: str, path: str, workspace: str) -> bool:
    """Return whether a resolved path matches a pattern exactly."""
    return _compile_path(_make_absolute(pattern, workspace)).fullmatch(path) is not None


def may_be_path(pattern: str, path: str, workspace: str) -> bool:
    """Return whether a pattern matches a path or one of its parents, in any spelling.

    A pattern without a slash matches a name in any directory. Blocks to resolve symbolic links in the pattern.
    """
    patterns = {_make_absolute(pattern, workspace)}
    if "/" not in pattern and not pattern.startswith("~"):
        patterns.add(f"/**/{pattern}")
    for absolute in [*patterns]:
        fixed = _get_fixed_part(absolute)
        patterns.add(os.path.realpath(fixed or "/").rstrip("/") + absolute[len(fixed) :])
    parents = [path.casefold()]
    while parents[-1] != os.path.dirname(parents[-1]):
        parents.append(os.path.dirname(parents[-1]))
    return any(_compile_path(text.casefold()).fullmatch(parent) for text in patterns for parent in parents)


def may_lie_below(pattern: str, folder: str, workspace: str) -> bool:
    """Return whether a pattern may match something below a directory."""
    fixed = _get_fixed_part(_make_absolute(pattern, workspace)).rstrip("/").casefold()
    inside = folder.rstrip("/").casefold() + "/"
    return "/" not in pattern or fixed.startswith(inside) or inside.startswith(f"{fixed}/")


def _make_absolute(pattern: str, workspace: str) -> str:
    return os.path.normpath(os.path.join(workspace, os.path.expanduser(pattern)))


def _get_fixed_part(pattern: str) -> str:
    """Return the directories before the first wildcard."""
    parts = pattern.split("/")
    count = next((index for index, part in enumerate(parts) if has_wildcards(part)), len(parts))
    return "/".join(parts[:count])


_PATH_WILDCARDS = {"/**/": "/(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@lru_cache(maxsize=256)
def _compile_path(pattern: str) -> re.Pattern[str]:
    text = pattern.removesuffix("/**")
    regex = ""
    for piece in re.split(r"(/\*\*/|\*\*|\*|\?)", text):
        regex += _PATH_WILDCARDS[piece] if piece in _PATH_WILDCARDS else re.escape(piece)
    return re.compile(regex + ("(?:/.*)?" if text != pattern else ""), re.DOTALL)


# -- hosts --------------------------------------------------------------------------------------


def parse_host(url: str) -> str | None:
    """Return the host of a URL in lower case, or `None` if it's missing or not ASCII."""
    try:
        host = urlsplit(url.strip()).hostname
    except ValueError:
        return None
    return host.rstrip(".").lower() if host and host.isascii() else None


def is_host(pattern: str, host: str) -> bool:
    """Return whether a host matches a pattern exactly. `*.` matches subdomains."""
    pattern = pattern.lower().rstrip(".")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and host != pattern[1:]
    return pattern in {host, "*"}


def may_be_host(pattern: str, host: str | None) -> bool:
    """Return whether a pattern may match a host: the same one, a subdomain, or an unknown one."""
    name = pattern.lower().rstrip(".").removeprefix("*.")
    return host is None or name in {host, "*"} or host.endswith(f".{name}")


# -- tools of servers ---------------------------------------------------------------------------
#
# `a__b__*` can mean tools `b__…` of server `a`, or every tool of server `a__b`. To allow, only one reading counts: the
# existing server with the longest id, where the part before the `__` must be the whole id. A name without a wildcard
# means the tool listed under it. A wildcard in the server's part never matches a `__`. A pattern without `__` names
# local tools, except `*` alone, which names everything. To deny or ask, any possible reading counts, so that adding
# a server never lets a denied call run.

_WILDCARD = re.compile(r"[*?]")


def names_exactly(pattern: str, ref: RemoteToolRef, name: str, *, shared: bool) -> bool:
    """Return whether a pattern names a remote tool beyond doubt, which is required to allow it.

    A pattern without wildcards must equal `name`, by which a model calls the tool. If the joined name is `shared` with
    a tool of a server with a longer id, a pattern with another `__` doesn't name this tool.
    """
    if pattern == "*" or _WILDCARD.search(pattern) is None:
        return pattern in {"*", name}
    fixed = _WILDCARD.split(pattern, maxsplit=1)[0]
    index = pattern.find(QUALIFIER, 1)
    while index > 0:
        server, tool = pattern[:index], pattern[index + len(QUALIFIER) :]
        is_server = server == ref.server
        if _WILDCARD.search(server) is not None:
            if QUALIFIER in server:
                return False
            is_server = QUALIFIER not in ref.server and match_glob(server, ref.server)
        is_unshared = not shared or QUALIFIER not in fixed[len(server) + 1 :]
        if is_server and is_unshared and tool and match_glob(tool, ref.name):
            return True
        index = pattern.find(QUALIFIER, index + 1)
    return False


def may_name(pattern: str, ref: RemoteToolRef, name: str) -> bool:
    """Return whether a pattern may name a remote tool, which is enough to deny or ask."""
    return match_glob(pattern, name) or match_glob(pattern, qualify_tool_name(ref))


def match_action(specifier: str, method: str, host: str | None, slug: str) -> PatternMatch:
    """Match a pattern with an action, by method and host or by slug: `YES` if it does, `MAYBE` if it may mean it.

    A pattern in any other form may mean every action.
    """
    pattern = parse_action_pattern(specifier)
    if pattern is None:
        return PatternMatch.MAYBE
    wanted, domain, name = pattern
    if name is not None:
        is_exact, may_be = match_glob(name, slug), match_glob(name.casefold(), slug.casefold())
    elif domain is None or wanted not in {None, method}:
        return PatternMatch.NO
    else:
        is_exact, may_be = host is not None and is_host(domain, host), may_be_host(domain, host)
    return PatternMatch.YES if is_exact else PatternMatch.MAYBE if may_be else PatternMatch.NO
