"""What the specifier of a rule stands for: a command, a path, a host.

Each is compared in two ways. To allow, what is compared must be exactly what the pattern says. To
deny or to ask, it is enough that the pattern may be meant: other spellings, options in between,
what lies below a directory.

Which tools of servers a rule names: by server and tool, not by the two names joined.

`a__b__*` can be read as tools `b__…` of server `a`, or as every tool of server `a__b`. To allow,
one reading holds: that of the server with the longest id that exists, and the part before the `__`
must be the server's id, whole. A name without a star means the tool that is shown under it. A star
in the server's part never stands for a `__`; a pattern without `__` names tools of this machine,
other than `*` alone, which names everything. To deny or to ask, it is enough that one of the
readings may be meant: what a rule kept from running is kept from it when a server is added.
"""

from __future__ import annotations

import os
import re
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from indusagi.interop.protocol_bridge.contract import QUALIFIER, qualify_tool_name
from induscode.session.permissions.rules import split_command_pattern
from induscode.session.permissions.shell.arguments import find_problem
from induscode.session.permissions.shell.launchers import base_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from induscode.session.permissions.shell.arguments import Problem
    from induscode.session.permissions.shell.parse import Command
    from induscode.session.permissions.shell.syntax import Word


class PatternMatch(IntEnum):
    """Whether a pattern is meant, as far as one can tell."""

    NO = 0
    MAYBE = 1
    YES = 2


# -- commands ---------------------------------------------------------------------------------


def match_command(specifier: str, command: Command) -> frozenset[int] | None:
    """Tell which words of a command a pattern names literally; None if it is another command.

    A `*` at the end of a pattern stands for further words, of which it names none.
    """
    pattern, more = split_command_pattern(specifier)
    if len(command.words) < len(pattern) or (not more and len(command.words) > len(pattern)):
        return None
    pairs = list(zip(pattern, command.words, strict=False))
    if not all(word.text is not None and _fits(part, word.text) for part, word in pairs):
        return None
    return frozenset(at for at, (part, word) in enumerate(pairs) if "*" not in part and not word.glob)


def find_allow_problem(specifier: str | None, command: Command) -> Problem | None:
    """Say why a rule that names a command does not allow it as it is; None if it does.

    A rule about every command (`bash`, `bash(*)`) is not asked about what is merely unknown.
    """
    named = frozenset[int]() if specifier is None else match_command(specifier, command)
    assert named is not None, "the rule is about another command"
    problem = find_problem(command.words, named, fed=command.fed)
    every = specifier is None or split_command_pattern(specifier) == ((), True)
    return None if problem is not None and every and not problem.acts else problem


def may_be_command(specifier: str, command: Command) -> PatternMatch:
    """Tell whether a command is, or may be, what a pattern says, whatever follows."""
    pattern, _ = split_command_pattern(specifier)
    if not pattern:
        return PatternMatch.YES
    name, *rest = command.words
    first = _is_name(base_name(pattern[0]), name)
    if first is PatternMatch.NO:
        return PatternMatch.NO
    if first is PatternMatch.MAYBE and not name.single:
        return PatternMatch.MAYBE  # it may become several words
    options = [part for part in pattern[1:] if part.startswith("-")]
    operands = [part for part in pattern[1:] if not part.startswith("-")]
    return min(first, _has_options(options, rest), _in_order(operands, rest))


def _fits(pattern: str, text: str, *, fold: bool = False) -> bool:
    """Compare a word with a pattern in which `*` stands for anything."""
    if fold:
        pattern, text = pattern.casefold(), text.casefold()
    first, *others = pattern.split("*")
    if not others:
        return first == text
    if not text.startswith(first):
        return False
    at = len(first)
    for part in others[:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - at >= len(others[-1]) and text.endswith(others[-1])


def _is_name(pattern: str, word: Word) -> PatternMatch:
    for guess in word.guesses:
        name = base_name(guess)
        if _fits(pattern, name, fold=True):
            return PatternMatch.YES
        if word.glob and _globbed(name).fullmatch(pattern):
            return PatternMatch.YES
    return PatternMatch.MAYBE if word.hole or word.glob else PatternMatch.NO


@lru_cache(maxsize=256)
def _globbed(name: str) -> re.Pattern[str]:
    """Make a pattern of a name with the signs of the shell in it."""
    from fnmatch import translate  # noqa: PLC0415 — for names that hide in a glob only

    return re.compile(translate(name))


def _has_options(options: Sequence[str], words: Sequence[Word]) -> PatternMatch:
    """Look for options anywhere; letters of short ones may stand together or apart."""
    given = [guess for word in words for guess in word.guesses if guess.startswith("-")]
    letters = {letter for text in given if not text.startswith("--") for letter in text[1:]}
    initials = {text[2:3] for text in given if text.startswith("--")}
    hole = any(word.text is None or word.glob for word in words)
    found = PatternMatch.YES
    for option in options:
        if option.startswith("--"):
            there = any(_is_long(option, text) for text in given)
            same = option[2:3].casefold() in {letter.casefold() for letter in letters}
        else:
            there = option in given or set(option[1:]) <= letters
            known_letters = {letter.casefold() for letter in letters | initials}
            same = set(option[1:].casefold()) <= known_letters
        if there:
            continue
        # `-f` and `--force` are often the same; only the program knows.
        if not hole and not same:
            return PatternMatch.NO
        found = PatternMatch.MAYBE
    return found


def may_be_program(specifier: str, word: Word) -> bool:
    """Tell whether a word may be the program of a pattern, under any path."""
    pattern, _ = split_command_pattern(specifier)
    program = base_name(pattern[0])
    names = [part for guess in word.guesses for part in re.split(r"[\s=:]+", guess) if part]
    return any(
        _fits(program, base_name(name), fold=True)
        or (word.glob and _globbed(base_name(name)).fullmatch(program) is not None)
        for name in names
    )


def _is_long(option: str, text: str) -> bool:
    name = text.partition("=")[0]
    return _fits(option, text) or name == option or (len(name) > 3 and option.startswith(name))


def _in_order(parts: Sequence[str], words: Sequence[Word]) -> PatternMatch:
    """Look for words in this order, with nothing but options and their values in between."""
    places = {0}
    hole = False
    for part in parts:
        reached = _reachable(places, words)
        hole = hole or any(words[place].text is None for place in reached)
        places = {
            place + 1 for place in reached if any(_fits(part, guess, fold=True) for guess in words[place].guesses)
        }
        if not places:
            return PatternMatch.MAYBE if hole else PatternMatch.NO
    return PatternMatch.YES


def _reachable(places: set[int], words: Sequence[Word]) -> list[int]:
    """List where the next word may stand: behind options and their values, and behind nothing."""
    found: set[int] = set()
    waiting = list(places)
    while waiting:
        at = waiting.pop()
        if at >= len(words) or at in found:
            continue
        found.add(at)
        if any(guess.startswith("-") for guess in words[at].guesses):
            waiting += [at + 1, at + 2]
        if "" in words[at].guesses:
            waiting.append(at + 1)
    return sorted(found)


# -- paths ------------------------------------------------------------------------------------


def has_wildcards(pattern: str) -> bool:
    """Tell whether a pattern stands for more than one path."""
    return any(sign in pattern for sign in "*?")


def is_absolute(pattern: str) -> bool:
    """Tell whether a pattern names its place by itself."""
    return pattern.startswith(("/", "~"))


def is_path(pattern: str, path: str, workspace: str) -> bool:
    """Tell whether a resolved path is exactly what a pattern says."""
    return _path_pattern(_rooted(pattern, workspace)).fullmatch(path) is not None


def may_be_path(pattern: str, path: str, workspace: str) -> bool:
    """Tell whether a path, or a directory above it, is what a pattern says under any spelling.

    A pattern without a slash stands for a name anywhere. This looks at the file system.
    """
    patterns = {_rooted(pattern, workspace)}
    if "/" not in pattern and not pattern.startswith("~"):
        patterns.add(f"/**/{pattern}")
    patterns |= {_resolved(one) for one in patterns}
    above = [path.casefold()]
    while above[-1] != os.path.dirname(above[-1]):
        above.append(os.path.dirname(above[-1]))
    return any(_path_pattern(one.casefold()).fullmatch(part) for one in patterns for part in above)


def may_lie_below(pattern: str, folder: str, workspace: str) -> bool:
    """Tell whether what a pattern says may lie in a directory."""
    fixed = _fixed_part(_rooted(pattern, workspace)).rstrip("/").casefold()
    inside = folder.rstrip("/").casefold() + "/"
    return "/" not in pattern or fixed.startswith(inside) or inside.startswith(f"{fixed}/")


def _rooted(pattern: str, workspace: str) -> str:
    full = os.path.join(workspace, os.path.expanduser(pattern))
    return os.path.normpath(full)


def _fixed_part(pattern: str) -> str:
    """Give the directories before the first sign."""
    parts = pattern.split("/")
    count = next((n for n, part in enumerate(parts) if has_wildcards(part)), len(parts))
    return "/".join(parts[:count])


def _resolved(pattern: str) -> str:
    fixed = _fixed_part(pattern)
    return os.path.realpath(fixed or "/").rstrip("/") + pattern[len(fixed) :]


@lru_cache(maxsize=256)
def _path_pattern(pattern: str) -> re.Pattern[str]:
    text = pattern.removesuffix("/**")
    made = ""
    for piece in re.split(r"(/\*\*/|\*\*|\*|\?)", text):
        made += _SIGNS[piece] if piece in _SIGNS else re.escape(piece)
    return re.compile(made + ("(?:/.*)?" if text != pattern else ""), re.DOTALL)


_SIGNS = {"/**/": "/(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


# -- hosts ------------------------------------------------------------------------------------


def parse_host(url: str) -> str | None:
    """Give the host of an address, in one spelling; None if there is none that can be told."""
    try:
        host = urlsplit(url.strip()).hostname
    except ValueError:
        return None
    return host.rstrip(".").lower() if host and host.isascii() else None


def is_host(pattern: str, host: str) -> bool:
    """Tell whether a host is exactly what a pattern says; `*.` stands for what is below."""
    pattern = pattern.lower().rstrip(".")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and host != pattern[1:]
    return pattern in {host, "*"}


def may_be_host(pattern: str, host: str | None) -> bool:
    """Tell whether a host may be meant: the one named, one below it, or one that nobody knows."""
    named = pattern.lower().rstrip(".").removeprefix("*.")
    return host is None or named in {host, "*"} or host.endswith(f".{named}")


_WILDCARD = re.compile(r"[*?]")


def names_exactly(pattern: str, ref: RemoteToolRef, name: str, *, shared: bool) -> bool:
    """Tell whether a pattern names a tool of a server, beyond doubt: enough to allow it.

    `name` is the one a model calls it by, and what a pattern without a star or `?` must be. If its
    joined name is `shared` with a server of a longer id, a pattern that has a further `__` is not
    taken to mean this tool.
    """
    if pattern == "*" or _WILDCARD.search(pattern) is None:
        return pattern in {"*", name}
    return any(
        _is_server(server, ref.server)
        and match_glob(tool, ref.name)
        and (not shared or QUALIFIER not in _literal_start(pattern)[len(server) + 1 :])
        for server, tool in _splits(pattern)
    )


def may_name(pattern: str, ref: RemoteToolRef, name: str) -> bool:
    """Tell whether a pattern may be meant to name a tool of a server: enough to deny or to ask."""
    joined = qualify_tool_name(ref)
    return match_glob(pattern, name) or match_glob(pattern, joined)


@lru_cache(maxsize=512)
def _compile_glob(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(text, re.DOTALL)


def match_glob(pattern: str, text: str) -> bool:
    """Compare a whole text with a pattern: `*` is any characters, `?` is one."""
    return _compile_glob(pattern).fullmatch(text) is not None


def _is_server(pattern: str, server: str) -> bool:
    if _WILDCARD.search(pattern) is None:
        return pattern == server
    return QUALIFIER not in server and match_glob(pattern, server)


def _literal_start(pattern: str) -> str:
    return _WILDCARD.split(pattern, maxsplit=1)[0]


def _splits(pattern: str) -> Iterator[tuple[str, str]]:
    """Give the ways to read a pattern as one of a server and one of its tools."""
    at = pattern.find(QUALIFIER, 1)
    while at > 0:
        server, tool = pattern[:at], pattern[at + len(QUALIFIER) :]
        if _WILDCARD.search(server) and QUALIFIER in server:
            return
        if tool:
            yield server, tool
        at = pattern.find(QUALIFIER, at + 1)
