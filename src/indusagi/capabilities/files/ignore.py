"""Git ignore rules (https://git-scm.com/docs/gitignore), loaded while walking a tree.

We match names as bytes, with one expression per rule file; the tests compare against git. Other libraries fail on cases
found in real trees (`[[:upper:]]`, braces, `?` next to a two-byte character). The work is bounded: matching takes at
most pattern length times name length, and a huge rule file doesn't apply, or only in part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from typing import NamedTuple

from indusagi.core.app_dirs import read_small_file

RULE_FILE = ".gitignore"
REPOSITORY = ".git"
_FILE_BYTES = 1024 * 1024
"""Size limit of one rule file."""
_CHAIN_BYTES = 4 * 1024 * 1024
"""Total size limit of all rule files that apply to a name."""
_MAX_GLOBS = 1_000
_MAX_GLOB_BYTES = 64 * 1024
"""Limits on the patterns of one file that we have to try one by one."""
_LONGEST_PATTERN = 4_096
_CONFIG_BYTES = 64 * 1024
_GIT_DIR = re.compile(rb"gitdir: ([^\r\n]+)")
_EXCLUDES_FILE = re.compile(rb'^\s*excludesfile\s*=\s*"?\s*(\S+?)\s*"?\s*$', re.I | re.M)
_NO_VERDICT = (-1, -1)


# -- one rule file ------------------------------------------------------------------------------


class _Globs:
    """Patterns with wildcards, compiled into one expression on first use."""

    def __init__(self) -> None:
        self._rules: list[tuple[int, str]] = []
        self._verdicts: list[int] = []
        self._regex: re.Pattern[str] | None = None

    def add(self, verdict: int, glob: str) -> None:
        self._rules.append((verdict, glob))

    def find_verdict(self, subject: str) -> int:
        """Return the verdict of the last pattern that matches, or -1."""
        if not self._rules:
            return -1
        if self._regex is None:
            # The first alternative that matches counts, so the last rule comes first.
            regexes = [(verdict, translate_glob(glob)) for verdict, glob in reversed(self._rules)]
            self._verdicts = [verdict for verdict, regex in regexes if regex is not None]
            self._regex = re.compile("|".join(f"({regex})" for _, regex in regexes if regex is not None), re.DOTALL)
        match = self._regex.match(subject)
        return self._verdicts[match.lastindex - 1] if match is not None and match.lastindex else -1


class RuleFile:
    """The rules of one file; the last matching rule wins.

    A verdict is twice the rule number, plus one for a negated rule, so the greatest verdict wins. Text has one
    character per byte, because git matches bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._plain: dict[str, list[int]] = {}
        """Verdicts for files and for directories, by name or by path with a leading slash."""
        self._by_name, self._by_path = (_Globs(), _Globs()), (_Globs(), _Globs())
        """For files, and for directories."""
        globs = glob_chars = 0
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").decode("latin-1").split("\n")):
            line = line.removesuffix("\r")
            if not line or line.startswith("#") or len(line) > _LONGEST_PATTERN:
                continue
            # Escaped trailing spaces count.
            text = line.rstrip(" ")
            is_escaped = len(text) < len(line) and (len(text) - len(text.rstrip("\\"))) % 2 == 1
            line = line[: len(text) + is_escaped]
            negated, dir_only = line.startswith("!"), line.endswith("/")
            text = line[negated : len(line) - dir_only]
            verdict, bare, by_path = number * 2 + negated, text.removeprefix("/"), "/" in text
            if not SPECIAL.search(text):
                pair = self._plain.setdefault(f"/{bare}" if by_path else bare, [*_NO_VERDICT])
                pair[dir_only:] = [verdict] * (2 - dir_only)
                continue
            globs, glob_chars = globs + 1, glob_chars + len(text)
            if globs > _MAX_GLOBS or glob_chars > _MAX_GLOB_BYTES:
                break
            for table in (self._by_path if by_path else self._by_name)[dir_only:]:
                table.add(verdict, bare)

    def decide(self, name: str, path: str, *, is_dir: bool) -> bool | None:
        """Return whether the rules ignore a name, or None if no rule matches.

        `path` is relative to the rule file's directory. A link to a directory doesn't count as one.
        """
        best = max(
            self._plain.get(name, _NO_VERDICT)[is_dir],
            self._plain.get(f"/{path}", _NO_VERDICT)[is_dir],
            self._by_name[is_dir].find_verdict(name),
            self._by_path[is_dir].find_verdict(path),
        )
        return None if best < 0 else best % 2 == 0


# -- the rules of a directory -------------------------------------------------------------------


class _Level(NamedTuple):
    """A rule file, and the offset of its directory in a path."""

    rules: RuleFile
    start: int


class IgnoreRules(NamedTuple):
    """The rules of one directory: call `load` for the root of a walk, then `below` for subdirectories."""

    levels: tuple[_Level, ...] = ()
    """Lowest precedence first."""
    path: str = ""
    """Path from the topmost directory with rules, with a trailing slash."""

    @staticmethod
    def load(folder: str) -> IgnoreRules:
        """Load every rule that applies in a directory: its own, the ones from parent directories, and the user's.

        We read parents up to the root of the repository. Rules also apply outside a repository, because the tree may
        become one later. Blocks.
        """
        here = os.path.abspath(folder)
        chain = [here]
        while not os.path.lexists(os.path.join(here, REPOSITORY)):
            above = os.path.dirname(here)
            if above == here:
                break
            here = above
            chain.append(here)
        rules = _add_rules(_load_repository(here), _read_rules(here, RULE_FILE, _FILE_BYTES))
        for path in reversed(chain[:-1]):
            rules = _add_rules(_descend(rules, os.path.basename(path)), _read_rules(path, RULE_FILE, _FILE_BYTES))
        return rules

    def below(self, name: str, folder: str | int, names: Container[str]) -> IgnoreRules:
        """Return the rules of a subdirectory, given its path or descriptor, and the names in it."""
        # The rules of a repository don't apply in a nested repository.
        rules = _load_repository(folder) if REPOSITORY in names else _descend(self, name)
        if RULE_FILE not in names:
            return rules
        return _add_rules(rules, _read_rules(folder, RULE_FILE, _FILE_BYTES))

    def ignores(self, name: str, *, is_dir: bool) -> bool:
        """Return whether a name in this directory is ignored. A symbolic link doesn't count as a directory."""
        text = _to_byte_text(name)
        for rules, start in reversed(self.levels):
            verdict = rules.decide(text, self.path[start:] + text, is_dir=is_dir)
            if verdict is not None:
                return verdict
        return False


def _to_byte_text(name: str) -> str:
    return name if name.isascii() else os.fsencode(name).decode("latin-1")


def _load_repository(folder: str | int) -> IgnoreRules:
    """Load repository-wide rules: the user's and `info/exclude`."""
    users = _find_user_rules()
    rules = _add_rules(IgnoreRules(), None if users is None else _read_rules("/", users, _FILE_BYTES, follow=True))
    # A `.git` file points to a git directory elsewhere, which in turn may point to the main worktree's.
    pointer = _GIT_DIR.match(_read_rules(folder, REPOSITORY, _CONFIG_BYTES) or b"")
    place = REPOSITORY
    if pointer:
        place = os.fsdecode(pointer[1])
        common = _read_rules(folder, os.path.join(place, "commondir"), _CONFIG_BYTES)
        place = os.path.join(place, os.fsdecode((common or b".").strip()))
    return _add_rules(rules, _read_rules(folder, os.path.join(place, "info", "exclude"), _FILE_BYTES))


def _descend(rules: IgnoreRules, name: str) -> IgnoreRules:
    return IgnoreRules(rules.levels, f"{rules.path}{_to_byte_text(name)}/" if rules.levels else "")


def _add_rules(rules: IgnoreRules, data: bytes | None) -> IgnoreRules:
    """Add the rules of a file, taking precedence over the present ones."""
    if not data or sum(level.rules.size for level in rules.levels) + len(data) > _CHAIN_BYTES:
        return rules
    return IgnoreRules((*rules.levels, _Level(RuleFile(data), len(rules.path))), rules.path)


def _find_user_rules() -> str | None:
    """Return the path of the user's global ignore file, or None if there's no home directory."""
    home = os.environ.get("HOME", "")
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(settings):
        settings = os.path.join(home, ".config")
    if not os.path.isabs(settings):
        return None
    for config in (os.path.join(home, ".gitconfig"), os.path.join(settings, "git", "config")):
        match = _EXCLUDES_FILE.search(_read_rules("/", config, _CONFIG_BYTES, follow=True) or b"")
        if match:
            named = os.fsdecode(match[1])
            return os.path.join(home, named.removeprefix("~/")) if named[:1] == "~" else named
    return os.path.join(settings, "git", "ignore")


def _read_rules(folder: str | int, name: str, limit: int, *, follow: bool = False) -> bytes | None:
    """Read a regular file, or None if there's none or it's too large.

    Like git, we don't follow symbolic links in a tree, since they may point anywhere.
    """
    by_handle = folder if isinstance(folder, int) else None
    path = name if by_handle is not None else os.path.join(str(folder), name)
    try:
        return read_small_file(path, limit, follow=follow, dir_fd=by_handle)
    except (OSError, ValueError):
        return None


# -- globs ------------------------------------------------------------------------------------


SPECIAL = re.compile(r"[*?\[\\]")
"""Characters that turn a plain name into a pattern."""
_CLASSES = {
    "alnum": r"0-9A-Za-z",
    "alpha": r"A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": r"0-9",
    "graph": r"!-~",
    "lower": r"a-z",
    "print": r" -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\n\r\x0b\x0c",
    "upper": r"A-Z",
    "xdigit": r"0-9A-Fa-f",
}


class _InvalidGlob(Exception):
    """A pattern that matches nothing because a class is unclosed or unknown."""


_STAR, _DIRECTORIES, _ANYTHING = r"[^/]*", r"(?:[^/]*/)*", r".*"


def compile_glob(glob: str) -> re.Pattern[str] | None:
    """Compile a glob for a path; return None if it can't match anything."""
    regex = translate_glob(glob)
    return None if regex is None else re.compile(regex, re.DOTALL)


def translate_glob(glob: str) -> str | None:
    """Translate a glob for a path to a regular expression; return None if it can't match anything.

    `*` and `?` match within a name, `**` matches any number of directories. The text between two stars (or two double
    stars) only matches at its first position, via an atomic group: a later position could only leave less to match.
    Without that, a pattern with many stars would take exponential time.
    """
    special = SPECIAL.search(glob)
    start = special.start() if special else len(glob)
    # Like git, we recognize a double star right after the literal prefix too.
    regex, group = re.escape(glob[:start]), ""
    try:
        parts = list(_split_at_stars(glob[start:]))
    except _InvalidGlob:
        return None
    doubles = [position for position, (star, _) in enumerate(parts) if star == _DIRECTORIES]
    for position, (star, text) in enumerate(parts):
        if star == _DIRECTORIES:
            regex += f"(?>{group})" if position > doubles[0] else group
            group = f"{star}{'?' if position < doubles[-1] else ''}{text}"
        elif star == _STAR and parts[position + 1 : position + 2] and parts[position + 1][0] == _STAR:
            group += f"(?>{star}?{text})"
        else:
            group += star + text
    return regex + group + r"\Z"


def _split_at_stars(glob: str) -> Iterator[tuple[str, str]]:
    """Split a pattern at its stars into (regex of the star, regex of the text after it) pairs."""
    star, text, position = "", "", 0
    while position < len(glob):
        if glob[position] == "*":
            yield star, text
            end = position
            while glob[end : end + 1] == "*":
                end += 1
            is_whole = end - position > 1 and (position == 0 or glob[position - 1] == "/")
            if is_whole and end == len(glob):
                star = _ANYTHING
            elif is_whole and glob[end] == "/":
                star, end = _DIRECTORIES, end + 1
            else:
                star = _STAR
            position, text = end, ""
        elif glob[position] == "?":
            text, position = f"{text}[^/]", position + 1
        elif glob[position] == "[":
            piece, position = _translate_class(glob, position + 1)
            text += piece
        else:
            position, char = _read_character(glob, position)
            text += re.escape(char)
    yield star, text


def _translate_class(glob: str, position: int) -> tuple[str, int]:
    negated = glob[position : position + 1] in {"!", "^"}
    position += negated
    members: list[str] = []
    previous = ""
    first = True
    while first or glob[position : position + 1] != "]":
        first = False
        if position >= len(glob):
            raise _InvalidGlob
        position, previous = _add_member(glob, position, previous, members)
    # A class never matches a slash.
    return f"(?!/)[{'^' if negated else ''}{''.join(members)}]", position + 1


def _add_member(glob: str, position: int, previous: str, members: list[str]) -> tuple[int, str]:
    """Add a character, range or named class; return the next position and the possible start of a range."""
    if glob[position] == "-" and previous and glob[position + 1 : position + 2] not in {"", "]"}:
        position, last = _read_character(glob, position + 1)
        if last >= previous:
            members.append(f"{re.escape(previous)}-{re.escape(last)}")
        return position, ""
    if glob[position : position + 2] == "[:":
        end = glob.find("]", position + 2)
        if end < 0:
            raise _InvalidGlob
        if end > position + 2 and glob[end - 1] == ":":
            name = glob[position + 2 : end - 1]
            if name not in _CLASSES:
                raise _InvalidGlob
            members.append(_CLASSES[name])
            return end + 1, ""
    position, char = _read_character(glob, position)
    members.append(re.escape(char))
    return position, char


def _read_character(glob: str, position: int) -> tuple[int, str]:
    position += glob[position] == "\\"
    if position >= len(glob):
        raise _InvalidGlob
    return position + 1, glob[position]
