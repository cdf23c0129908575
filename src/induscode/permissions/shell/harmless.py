"""Harmless commands: those that only read files below the workspace, and so run without a question.

They write nothing, contact nobody and start no other program, whatever the files say. `find_reads` lists what a command
may read, for the rules and the path policy. Such a command runs in a sandbox that can't write or reach the network.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence

from indusagi.capabilities.sandbox.policy import find_git_directories
from indusagi.core.app_dirs import is_within, read_small_file
from indusagi.core.records import record
from induscode.permissions.shell.arguments import find_problem
from induscode.permissions.shell.parse import Command, Script

_WITHOUT_FILES = ": [ basename date dirname echo expr factor false nproc printf pwd seq test tr true type uname"
_NO_FILES = frozenset(_WITHOUT_FILES.split())
"""Programs whose words aren't files they read."""
_WITH_FILES = """
    cat cut df du egrep fgrep file find fmt fold grep head ls md5sum nl numfmt od paste readlink realpath rev rg sed
    sha1sum sha256sum sha512sum sort stat tac tail tree uniq wc whereis which
"""
_READERS = frozenset(_WITH_FILES.split())
_GIT_COMMANDS = "blame describe diff log ls-files rev-list rev-parse shortlog show status"
_GIT_READS = frozenset(_GIT_COMMANDS.split())
_BUILTINS = _NO_FILES & {":", "[", "echo", "false", "printf", "pwd", "test", "true", "type"} | {"cd"}
_FOLLOWING = re.compile(r"-[a-zA-Z]*R.*|--de.*|--follow")
"""Options of `grep` and `rg` that read what links lead to, wherever that is."""
_RG_FOLLOWING = re.compile(r"-[a-zA-Z.]*L.*|--follow")
_LASTING = re.compile(r"\b(?:while|until|for)\b|(?<![&>])&(?![&>])")
"""Loops, and commands in the background."""
_LONGEST_OPTION = 40
_MOST_PATHS = 48
_MAX_CONFIG_BYTES = 64 * 1024
_SECTION = re.compile(r"\[\s*([A-Za-z0-9.-]+)(?:\s+\"[^\"\n]*\")?\s*\]\s*(?:[#;].*)?")
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=.*)?")
_PLAIN_SETTINGS = re.compile(
    r"core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol"
    r"|longpaths|quotepath)|remote\.(?:url|pushurl|fetch|tagopt)|branch\.(?:remote|merge|rebase|description)"
    r"|user\.(?:name|email)|(?:pull|push|fetch|init|color|advice|gc)\.[a-z]+|extensions\.(?:objectformat|refstorage)"
)
"""Settings of a repository that start nothing: https://git-scm.com/docs/git-config."""


@record
class Reads:
    """The paths that a harmless command may read, as written, and the directory it changes to before, if any."""

    paths: Sequence[str]
    folder: str | None
    uses_git: bool


def find_reads(script: Script) -> Reads | None:
    """List the paths that a command may read, or return `None` if it may do more than read."""
    if script.flaws or script.opaque or not script.whole or not script.commands or _LASTING.search(script.text):
        return None
    if any(command not in script.commands for command in script.suspects):
        return None
    paths: list[str] = []
    for redirect in script.redirects:
        target = redirect.target.text
        if target is None or (redirect.writes and target not in {"/dev/null", "/dev/stdout", "/dev/stderr"}):
            return None
        paths += () if redirect.writes else (target,)
    first, *others = script.commands
    folder = _read_directory(first)
    uses_git = False
    for command in script.commands if folder is None else others:
        found = _list_words(command)
        if found is None:
            return None
        uses_git = uses_git or command.words[0].text == "git"
        paths += found
    paths = [*dict.fromkeys(path for path in paths if path)]
    return Reads(paths, folder, uses_git) if len(paths) <= _MOST_PATHS else None


def _read_directory(command: Command) -> str | None:
    """Return the directory that a command changes to; `None` if it's another command."""
    texts = [word.text for word in command.words if not word.glob]
    if len(texts) != 2 or texts[0] != "cd" or len(command.words) != 2 or not texts[1]:
        return None
    return None if texts[1].startswith("-") else texts[1]


def _list_words(command: Command) -> Sequence[str] | None:
    """List the words that may be paths, or return `None` if the command may do more than read."""
    texts: list[str] = []
    for word in command.words:
        if word.text is None or word.glob or ("{" in word.text and re.search(r",|\.\.", word.text)):
            return None
        texts.append(word.text)
    name, *rest = texts
    if find_problem(command.words, fed=command.fed) is not None:
        return None
    if name in _NO_FILES:
        return ()
    if name == "git":
        rest = rest[1:] if rest[:1] == ["--no-pager"] else rest
        return [*_list_values(rest[1:])] if rest[:1] and rest[0] in _GIT_READS else None
    if name not in _READERS:
        return None
    following = {"rg": _RG_FOLLOWING, "grep": _FOLLOWING, "egrep": _FOLLOWING, "fgrep": _FOLLOWING}.get(name)
    if following is not None and any(following.fullmatch(text) for text in rest):
        return None
    if any(text.startswith("-") and len(text) > _LONGEST_OPTION for text in rest):
        return None
    return [*_list_values(rest)]


def _list_values(texts: Sequence[str]) -> Iterator[str]:
    """Yield all that may be a path in words: each operand, and each possible value of an option."""
    for text in texts:
        if not text.startswith("-"):
            yield text
        elif text.startswith("--"):
            yield text.partition("=")[2]
        else:
            yield from (text[index:] for index in range(2, len(text)))


def is_trusted(script: Script, reads: Reads, workspace: str, folders: Sequence[str]) -> bool:
    """Return whether each program is the system's, and git starts nothing in the workspace. Blocks."""
    if not all(map(os.path.isabs, os.environ.get("PATH", os.defpath).split(os.pathsep))):
        return False
    for command in script.commands:
        name = command.words[0].text or ""
        if name in _BUILTINS:
            continue
        path = shutil.which(name)
        if path is None or not os.path.isabs(path) or is_within(os.path.realpath(path), workspace):
            return False
        if is_within(os.path.normpath(path), workspace):
            return False
    if not reads.uses_git:
        return True
    # Another directory may be in another repository, or look like one.
    at_root = all(os.path.realpath(folder) == workspace for folder in folders)
    return at_root and not os.path.lexists(os.path.join(workspace, ".gitmodules")) and _is_plain_repository(workspace)


def _is_plain_repository(workspace: str) -> bool:
    """Return whether no setting of the workspace's repository can start a program or fetch."""
    directories = find_git_directories(workspace)
    for directory in directories:
        for name in ("config", "config.worktree"):
            try:
                text = read_small_file(os.path.join(directory, name), _MAX_CONFIG_BYTES).decode()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError):
                return False
            if not _is_plain_config(text):
                return False
    return bool(directories)


def _is_plain_config(text: str) -> bool:
    section = ""
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith(("#", ";")):
            continue
        if line.endswith("\\"):
            return False
        if (heading := _SECTION.fullmatch(line)) is not None:
            section = heading[1].lower()
        elif (entry := _ENTRY.fullmatch(line)) is None or not _PLAIN_SETTINGS.fullmatch(
            f"{section}.{entry[1].lower()}"
        ):
            return False
    return True
