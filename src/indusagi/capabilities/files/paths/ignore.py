"""Which files git would ignore: the rules of a tree, read as the tree is walked.

Names are matched as bytes and pattern by pattern as git does it, `git check-ignore` being the
judge. Libraries were tried and are wrong in corners that real trees have (`[[:upper:]]`, braces,
`?` beside a letter of two bytes). The work is bounded whatever a rule file holds: no pattern takes
more than its length times that of the name, and of a very large file only a part is applied.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

from indusagi.capabilities.files.paths.globs import compile_glob

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

RULE_FILE = ".gitignore"
REPOSITORY = ".git"
_FILE_BYTES = 1024 * 1024
"""The most that is read of one rule file."""
_CHAIN_BYTES = 4 * 1024 * 1024
"""The most that the rule files above one name may hold together."""
_GLOBS = 1_000
_GLOB_BYTES = 64 * 1024
"""How many patterns of one file are applied that must be tried one after the other."""
_LONGEST_PATTERN = 4_096
_CONFIG_BYTES = 64 * 1024
_SPECIAL = re.compile(rb"[*?\[\\]")
_NOT_ASCII = re.compile(rb"[^\x00-\x7f]")
_GIT_DIR = re.compile(rb"gitdir: ([^\r\n]+)")
_EXCLUDES_FILE = re.compile(rb'^\s*excludesfile\s*=\s*"?\s*(\S+?)\s*"?\s*$', re.I | re.M)


# -- one rule file ------------------------------------------------------------------------------


class _Glob:
    """A pattern that must be tried; compiled when that happens for the first time."""

    __slots__ = ("_regex", "by_path", "dir_only", "last", "prefix", "text", "verdict")

    def __init__(self, verdict: int, text: bytes, *, dir_only: bool, by_path: bool) -> None:
        self.verdict = verdict
        self.text = text
        self.dir_only = dir_only
        self.by_path = by_path
        special = _SPECIAL.search(text)
        self.prefix = text[: special.start()] if special else text
        """Few names begin like this: only those are tried."""
        self.last = b"" if b"/" in text[len(self.prefix) :] else self.prefix.rpartition(b"/")[2]
        """How the names begin that it matches, or the last parts of the paths."""
        self._regex: re.Pattern[str] | Literal[False] | None = False

    def matches(self, subject: bytes) -> bool:
        """Tell whether it matches a name or, if it holds a slash, a path."""
        # One character for each byte: to git a letter of two bytes is two characters.
        if self._regex is False:
            self._regex = compile_glob(self.text.decode("latin-1"))
        return self._regex is not None and self._regex.match(subject.decode("latin-1")) is not None


class RuleFile:
    """The rules of one file, kept by how they are looked up; the last that matches decides.

    A verdict is twice the number of a rule, and one more if the rule takes names back in: of
    several the greatest decides, and says how. Tables hold a pair: for files, for directories.
    """

    __slots__ = (
        *("_begins", "_ends", "_globs", "_names", "_path_begins", "_paths", "_suffixes", "_widths"),
        *("begins", "by_path", "cut", "ends", "names", "size"),
    )

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.cut = False
        """Whether it holds more than is applied."""
        self._names: dict[bytes, list[int]] = {}
        self._paths: dict[bytes, list[int]] = {}
        self._suffixes: dict[bytes, list[int]] = {}
        self._globs: list[_Glob] = []
        glob_bytes = 0
        for number, line in enumerate(_lines(data)):
            negated, dir_only = line.startswith(b"!"), line.endswith(b"/")
            text = line[negated : len(line) - dir_only]
            verdict = number * 2 + negated
            table = self._table(text)
            if table is not None:
                key = text[1:] if table is self._suffixes else text.removeprefix(b"/")
                pair = table.setdefault(key, [-1, -1])
                pair[1] = verdict
                if not dir_only:
                    pair[0] = verdict
                continue
            glob_bytes += len(text)
            if len(self._globs) >= _GLOBS or glob_bytes > _GLOB_BYTES:
                self.cut = True
                break
            pattern, by_path = text.removeprefix(b"/"), b"/" in text
            self._globs.append(_Glob(verdict, pattern, dir_only=dir_only, by_path=by_path))
        self._globs.reverse()
        self.by_path = bool(self._paths) or any(glob.by_path for glob in self._globs)
        """Whether a rule speaks of a path, and not of a name alone."""
        self._widths = {len(suffix) for suffix in self._suffixes}
        self._ends = tuple(self._suffixes)
        self._begins = tuple({glob.prefix for glob in self._globs if not glob.by_path})
        self._path_begins = tuple({glob.prefix for glob in self._globs if glob.by_path})
        last = (text.rpartition(b"/")[2] for text in (*self._names, *self._paths))
        self.names = frozenset(name.decode("utf-8", "surrogateescape") for name in last)
        self.ends = tuple({_ascii(suffix)[-1] for suffix in self._suffixes})
        self.begins = tuple({_ascii(glob.last)[0] for glob in self._globs})
        """No rule speaks of a name that is none of `names`, ends like none of `ends` and begins
        like none of `begins`: so it is with most, and to know that costs next to nothing."""

    def _table(self, text: bytes) -> dict[bytes, list[int]] | None:
        """Tell where a pattern is looked up; None for one that must be tried."""
        if not _SPECIAL.search(text):
            return self._paths if b"/" in text else self._names
        has_suffix = len(text) > 1 and text.startswith(b"*") and not _SPECIAL.search(text, 1)
        return self._suffixes if has_suffix and b"/" not in text else None

    def decide(self, name: bytes, path: bytes, *, is_dir: bool) -> bool | None:
        """Tell whether a name is ignored, or None if no rule here speaks of it.

        Args:
            name: Its last part.
            path: The way to it from the directory that the rules are for.
            is_dir: Whether it is a directory; a link to one is none.
        """
        if not (
            name in self._names
            or name.endswith(self._ends)
            or name.startswith(self._begins)
            or (self.by_path and (path in self._paths or path.startswith(self._path_begins)))
        ):
            return None  # as for most names there are
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


def _ascii(text: bytes) -> list[str]:
    """Give the parts that are ASCII: half a letter of two bytes would not be found in a text."""
    return [part.decode("ascii") for part in _NOT_ASCII.split(text)]


def _lines(data: bytes) -> Iterator[bytes]:
    """Give the patterns of a rule file without comments, line ends and spaces after them."""
    for raw in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = raw.removesuffix(b"\r")
        if line and not line.startswith(b"#") and len(line) <= _LONGEST_PATTERN:
            yield _without_spaces(line)


def _without_spaces(line: bytes) -> bytes:
    """Take the spaces at the end off, but for one that a backslash holds."""
    text = line.rstrip(b" ")
    held = len(text) < len(line) and (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
    return line[: len(text) + held]


# -- the rules of a directory -------------------------------------------------------------------


class _Level(NamedTuple):
    """A rule file, and where in the path of a name the part starts that it speaks of."""

    rules: RuleFile
    start: int


class IgnoreRules(NamedTuple):
    """What is ignored in one directory; `load` it for the first and `below` it for the others."""

    levels: tuple[_Level, ...] = ()
    """The weakest first."""
    path: bytes = b""
    """The way here from the topmost directory that has rules, with a slash at its end."""
    cut: bool = False
    """Whether there are more rules than are applied."""

    @staticmethod
    def load(folder: str) -> IgnoreRules:
        """Read all that holds in a directory: its own rules, those above it, and the user's.

        Rules are followed up to the repository that the directory lies in. Where there is none
        they hold all the same: a tree may become a repository later. Not for the event loop.
        """
        here = os.path.abspath(folder)
        chain = [here]
        while not os.path.lexists(os.path.join(here, REPOSITORY)):
            above = os.path.dirname(here)
            if above == here:
                break
            here = above
            chain.append(here)
        rules = _with(_of_repository(here), _read(here, RULE_FILE, _FILE_BYTES))
        for path in reversed(chain[:-1]):
            rules = _with(_child(rules, os.path.basename(path)), _read(path, RULE_FILE, _FILE_BYTES))
        return rules

    def below(self, name: str, folder: str | int, names: Container[str]) -> IgnoreRules:
        """Give the rules of a directory in this one.

        Args:
            name: Its name.
            folder: Its path, or a descriptor of it.
            names: What it holds; files of rules are looked for only if they are there.
        """
        # In another repository, what is said above is said of other files.
        rules = _of_repository(folder) if REPOSITORY in names else _child(self, name)
        if RULE_FILE not in names:
            return rules
        return _with(rules, _read(folder, RULE_FILE, _FILE_BYTES))

    def ignores(self, name: str, *, is_dir: bool) -> bool:
        """Tell whether a name in this directory is ignored; a link is never a directory."""
        for rules, start in reversed(self.levels):
            if not (name in rules.names or name.endswith(rules.ends) or name.startswith(rules.begins)):
                continue
            raw = name.encode("utf-8", "surrogateescape")
            path = self.path[start:] + raw if rules.by_path else raw
            said = rules.decide(raw, path, is_dir=is_dir)
            if said is not None:
                return said
        return False


def _of_repository(folder: str | int) -> IgnoreRules:
    """Start anew with what holds in a whole repository: the user's rules and its own."""
    users = _users_rules()
    first = None if users is None else _read("/", users, _FILE_BYTES, follow=True)
    return _with(_with(IgnoreRules(), first), _excludes(folder))


def _child(rules: IgnoreRules, name: str) -> IgnoreRules:
    path = rules.path + os.fsencode(name) + b"/" if rules.levels else b""
    return IgnoreRules(rules.levels, path, rules.cut)


def _with(rules: IgnoreRules, data: bytes | None) -> IgnoreRules:
    """Add the rules of a file, which decide before those that were there."""
    if not data:
        return rules
    size = sum(level.rules.size for level in rules.levels)
    if size + len(data) > _CHAIN_BYTES:
        return IgnoreRules(rules.levels, rules.path, cut=True)
    added = RuleFile(data)
    cut = rules.cut or added.cut or len(data) >= _FILE_BYTES
    return IgnoreRules((*rules.levels, _Level(added, len(rules.path))), rules.path, cut)


# -- where rules are kept -----------------------------------------------------------------------


def _users_rules() -> str | None:
    """Name the file with the rules of whoever runs this; None if nobody knows where that is."""
    home = os.environ.get("HOME", "")
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(settings):
        settings = os.path.join(home, ".config")
    if not os.path.isabs(settings):
        return None
    for config in (os.path.join(home, ".gitconfig"), os.path.join(settings, "git", "config")):
        said = _EXCLUDES_FILE.search(_read("/", config, _CONFIG_BYTES, follow=True) or b"")
        if said:
            named = os.fsdecode(said[1])
            return os.path.join(home, named.removeprefix("~/")) if named[:1] == "~" else named
    return os.path.join(settings, "git", "ignore")


def _excludes(folder: str | int) -> bytes | None:
    """Read the rules that a repository keeps for itself, also where its data are elsewhere."""
    pointer = _GIT_DIR.match(_read(folder, REPOSITORY, _CONFIG_BYTES) or b"")
    place = REPOSITORY
    if pointer:
        place = os.fsdecode(pointer[1])
        common = _read(folder, os.path.join(place, "commondir"), _CONFIG_BYTES)
        place = os.path.join(place, os.fsdecode((common or b".").strip()))
    return _read(folder, os.path.join(place, "info", "exclude"), _FILE_BYTES)


def _read(folder: str | int, name: str, limit: int, *, follow: bool = False) -> bytes | None:
    """Read the beginning of a regular file; None for whatever else is, or is not, there.

    In a tree a link is not followed, as git does not: it may lead anywhere.
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
