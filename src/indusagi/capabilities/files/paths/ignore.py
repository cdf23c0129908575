"""Git ignore rules (https://git-scm.com/docs/gitignore), loaded while walking a tree.

We match names as bytes, pattern by pattern; the tests compare against `git check-ignore`. Other libraries fail on
cases found in real trees (`[[:upper:]]`, braces, `?` next to a two-byte character). The work is bounded: matching takes
at most pattern length times name length, and only part of a huge rule file applies.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

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
_SPECIAL = re.compile(rb"[*?\[\\]")
_NOT_ASCII = re.compile(rb"[^\x00-\x7f]")
_GIT_DIR = re.compile(rb"gitdir: ([^\r\n]+)")
_EXCLUDES_FILE = re.compile(rb'^\s*excludesfile\s*=\s*"?\s*(\S+?)\s*"?\s*$', re.I | re.M)


# -- one rule file ------------------------------------------------------------------------------


class _Glob:
    """A pattern with wildcards, compiled on first use."""

    __slots__ = ("_regex", "by_path", "dir_only", "last", "prefix", "text", "verdict")

    def __init__(self, verdict: int, text: bytes, *, dir_only: bool, by_path: bool) -> None:
        self.verdict = verdict
        self.text = text
        self.dir_only = dir_only
        self.by_path = by_path
        special = _SPECIAL.search(text)
        self.prefix = text[: special.start()] if special else text
        """Only names with this prefix are candidates."""
        self.last = b"" if b"/" in text[len(self.prefix) :] else self.prefix.rpartition(b"/")[2]
        """Prefix of the last path component of every match."""
        self._regex: re.Pattern[str] | Literal[False] | None = False

    def matches(self, subject: bytes) -> bool:
        """Match a name or, if the pattern contains a slash, a path."""
        # One character per byte: git matches bytes.
        if self._regex is False:
            self._regex = compile_glob(self.text.decode("latin-1"))
        return self._regex is not None and self._regex.match(subject.decode("latin-1")) is not None


class RuleFile:
    """The rules of one file, in tables by kind; the last matching rule wins.

    A verdict is twice the rule number, plus one for a negated rule, so the greatest verdict wins. Tables map to a pair
    of verdicts: for files and for directories.
    """

    __slots__ = (
        *("_begins", "_ends", "_globs", "_names", "_path_begins", "_paths", "_suffixes", "_widths"),
        *("begins", "by_path", "cut", "ends", "names", "size"),
    )

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.cut = False
        """Whether some rules were dropped."""
        self._names: dict[bytes, list[int]] = {}
        self._paths: dict[bytes, list[int]] = {}
        self._suffixes: dict[bytes, list[int]] = {}
        self._globs: list[_Glob] = []
        glob_bytes = 0
        for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n")):
            line = raw.removesuffix(b"\r")
            if not line or line.startswith(b"#") or len(line) > _LONGEST_PATTERN:
                continue
            # Escaped trailing spaces count.
            text = line.rstrip(b" ")
            is_escaped = len(text) < len(line) and (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
            line = line[: len(text) + is_escaped]
            negated, dir_only = line.startswith(b"!"), line.endswith(b"/")
            text = line[negated : len(line) - dir_only]
            verdict = number * 2 + negated
            table: dict[bytes, list[int]] | None = None
            if not _SPECIAL.search(text):
                table = self._paths if b"/" in text else self._names
            elif len(text) > 1 and text.startswith(b"*") and not _SPECIAL.search(text, 1) and b"/" not in text:
                table = self._suffixes
            if table is not None:
                key = text[1:] if table is self._suffixes else text.removeprefix(b"/")
                pair = table.setdefault(key, [-1, -1])
                pair[1] = verdict
                if not dir_only:
                    pair[0] = verdict
                continue
            glob_bytes += len(text)
            if len(self._globs) >= _MAX_GLOBS or glob_bytes > _MAX_GLOB_BYTES:
                self.cut = True
                break
            pattern, by_path = text.removeprefix(b"/"), b"/" in text
            self._globs.append(_Glob(verdict, pattern, dir_only=dir_only, by_path=by_path))
        self._globs.reverse()
        self.by_path = bool(self._paths) or any(glob.by_path for glob in self._globs)
        """Whether any rule applies to a path rather than just a name."""
        self._widths = {len(suffix) for suffix in self._suffixes}
        self._ends = tuple(self._suffixes)
        self._begins = tuple({glob.prefix for glob in self._globs if not glob.by_path})
        self._path_begins = tuple({glob.prefix for glob in self._globs if glob.by_path})
        last = (text.rpartition(b"/")[2] for text in (*self._names, *self._paths))
        self.names = frozenset(name.decode("utf-8", "surrogateescape") for name in last)
        self.ends = tuple({_split_ascii(suffix)[-1] for suffix in self._suffixes})
        self.begins = tuple({_split_ascii(glob.last)[0] for glob in self._globs})
        """Cheap prefilter: no rule matches a name that isn't in `names`, has no suffix in `ends` and no prefix in
        `begins`."""

    def decide(self, name: bytes, path: bytes, *, is_dir: bool) -> bool | None:
        """Return whether the rules ignore a name, or None if no rule matches.

        Args:
            name: The last component of the path.
            path: The path relative to the rule file's directory.
            is_dir: Whether it's a directory; False for a link to one.
        """
        if not (
            name in self._names
            or name.endswith(self._ends)
            or name.startswith(self._begins)
            or (self.by_path and (path in self._paths or path.startswith(self._path_begins)))
        ):
            return None
        best = -1
        if (pair := self._names.get(name)) is not None:
            best = pair[is_dir]
        if self._paths and (pair := self._paths.get(path)) is not None and pair[is_dir] > best:
            best = pair[is_dir]
        for width in self._widths:
            pair = self._suffixes.get(name[-width:])
            if pair is not None and pair[is_dir] > best:
                best = pair[is_dir]
        for glob in self._globs:
            if glob.verdict < best:
                break
            subject = path if glob.by_path else name
            if (is_dir or not glob.dir_only) and subject.startswith(glob.prefix):
                if glob.matches(subject):
                    best = glob.verdict
                    break
        return None if best < 0 else best % 2 == 0


def _split_ascii(text: bytes) -> list[str]:
    """Split at non-ASCII bytes: we wouldn't find half a character in a decoded name."""
    return [part.decode("ascii") for part in _NOT_ASCII.split(text)]


# -- the rules of a directory -------------------------------------------------------------------


class _Level(NamedTuple):
    """A rule file, and the offset of its directory in a path."""

    rules: RuleFile
    start: int


class IgnoreRules(NamedTuple):
    """The rules of one directory: call `load` for the root of a walk, then `below` for subdirectories."""

    levels: tuple[_Level, ...] = ()
    """Lowest precedence first."""
    path: bytes = b""
    """Path from the topmost directory with rules, with a trailing slash."""
    cut: bool = False
    """Whether some rules were dropped."""

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
        rules = _add_rules(_load_repository(here), _read_start(here, RULE_FILE, _FILE_BYTES))
        for path in reversed(chain[:-1]):
            rules = _add_rules(_descend(rules, os.path.basename(path)), _read_start(path, RULE_FILE, _FILE_BYTES))
        return rules

    def below(self, name: str, folder: str | int, names: Container[str]) -> IgnoreRules:
        """Return the rules of a subdirectory.

        Args:
            name: The name of the subdirectory.
            folder: Its path or descriptor.
            names: The names in it, which tell whether there's a rule file to read.
        """
        # The rules of a repository don't apply in a nested repository.
        rules = _load_repository(folder) if REPOSITORY in names else _descend(self, name)
        if RULE_FILE not in names:
            return rules
        return _add_rules(rules, _read_start(folder, RULE_FILE, _FILE_BYTES))

    def ignores(self, name: str, *, is_dir: bool) -> bool:
        """Return whether a name in this directory is ignored. A symbolic link doesn't count as a directory."""
        for rules, start in reversed(self.levels):
            if not (name in rules.names or name.endswith(rules.ends) or name.startswith(rules.begins)):
                continue
            raw = name.encode("utf-8", "surrogateescape")
            path = self.path[start:] + raw if rules.by_path else raw
            verdict = rules.decide(raw, path, is_dir=is_dir)
            if verdict is not None:
                return verdict
        return False


def _load_repository(folder: str | int) -> IgnoreRules:
    """Load repository-wide rules: the user's and `info/exclude`."""
    users = _find_user_rules()
    rules = _add_rules(IgnoreRules(), None if users is None else _read_start("/", users, _FILE_BYTES, follow=True))
    # A `.git` file points to a git directory elsewhere, which in turn may point to the main worktree's.
    pointer = _GIT_DIR.match(_read_start(folder, REPOSITORY, _CONFIG_BYTES) or b"")
    place = REPOSITORY
    if pointer:
        place = os.fsdecode(pointer[1])
        common = _read_start(folder, os.path.join(place, "commondir"), _CONFIG_BYTES)
        place = os.path.join(place, os.fsdecode((common or b".").strip()))
    return _add_rules(rules, _read_start(folder, os.path.join(place, "info", "exclude"), _FILE_BYTES))


def _descend(rules: IgnoreRules, name: str) -> IgnoreRules:
    path = rules.path + os.fsencode(name) + b"/" if rules.levels else b""
    return IgnoreRules(rules.levels, path, rules.cut)


def _add_rules(rules: IgnoreRules, data: bytes | None) -> IgnoreRules:
    """Add the rules of a file, taking precedence over the present ones."""
    if not data:
        return rules
    size = sum(level.rules.size for level in rules.levels)
    if size + len(data) > _CHAIN_BYTES:
        return IgnoreRules(rules.levels, rules.path, cut=True)
    added = RuleFile(data)
    cut = rules.cut or added.cut or len(data) >= _FILE_BYTES
    return IgnoreRules((*rules.levels, _Level(added, len(rules.path))), rules.path, cut)


def _find_user_rules() -> str | None:
    """Return the path of the user's global ignore file, or None if there's no home directory."""
    home = os.environ.get("HOME", "")
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(settings):
        settings = os.path.join(home, ".config")
    if not os.path.isabs(settings):
        return None
    for config in (os.path.join(home, ".gitconfig"), os.path.join(settings, "git", "config")):
        match = _EXCLUDES_FILE.search(_read_start("/", config, _CONFIG_BYTES, follow=True) or b"")
        if match:
            named = os.fsdecode(match[1])
            return os.path.join(home, named.removeprefix("~/")) if named[:1] == "~" else named
    return os.path.join(settings, "git", "ignore")


def _read_start(folder: str | int, name: str, limit: int, *, follow: bool = False) -> bytes | None:
    """Read the start of a regular file; return None for anything else.

    Like git, we don't follow symbolic links in a tree, since they may point anywhere.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    flags |= 0 if follow else os.O_NOFOLLOW
    try:
        if isinstance(folder, int):
            handle = os.open(name, flags, dir_fd=folder)
        else:
            handle = os.open(os.path.join(folder, name), flags)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(limit)
    except OSError:
        return None
    finally:
        os.close(handle)


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
    """Compile a glob for a path; return None if it can't match anything.

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
    return re.compile(regex + group + r"\Z", re.DOTALL)


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
