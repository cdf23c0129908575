"""Snapshots of a work tree with git, in a private repository next to the conversation.

The private repository has separate settings, index and objects. It uses the objects of the user's repository as
alternates (gitrepository-layout(5)) and copies its index once, so unchanged files are never read. It ignores that
repository's settings, so none of its hooks, filters, file system monitors, pagers or submodule commands can run.
`info/attributes` takes precedence over every `.gitattributes` file (gitattributes(5)) and turns all conversions off,
so contents are stored byte for byte. Nothing writes to the user's repository.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from indusagi.capabilities.sandbox.policy import find_git_directories
from indusagi.core.app_dirs import find_trusted_program, make_private_dir, read_small_file
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from induscode.deck.stores.tree import (
    CONTENT_BUDGET,
    LARGEST_FILE,
    LeftOut,
    TreeEntry,
    TreeScan,
    build_entry,
    list_parents,
    read_signature,
    scan_folder,
)

LIMIT_S = 10.0
"""Time limit for one snapshot. The first one reads all files git converts, such as with `text=auto`."""
_SETTINGS = {
    **dict.fromkeys(("core.fsmonitor", "core.untrackedCache", "core.splitIndex", "maintenance.auto"), "false"),
    **dict.fromkeys(("core.autocrlf", "core.safecrlf", "core.protectNTFS", "core.protectHFS"), "false"),
    **dict.fromkeys(("core.fileMode", "core.symlinks"), "true"),
    "core.hooksPath": os.devnull,
    "core.looseCompression": "1",
    "core.fsync": "none",
    "gc.auto": "0",
}
_CONVERSIONS = ("text", "eol", "crlf", "ident", "filter", "working-tree-encoding")
"""Attributes that make stored content differ from the file's bytes."""
_NO_CONVERSION = f"* {' '.join(f'-{name}' for name in _CONVERSIONS)}\n"
_PLAIN_VALUES = frozenset({"unspecified", "unset"})
_MAX_SETTINGS_BYTES = 1024 * 1024
_BATCH_SIZE = 256
"""Contents per request: the names fit into a pipe buffer, so neither side blocks the other."""
_GITLINK = "160000"
_MAX_REASON_CHARS = 200


class GitError(OSError):
    """git failed."""


class GitTimeoutError(GitError):
    """git took too long."""


@record
class Repository:
    """The user's repository around a workspace."""

    top: str
    own: str
    """This work tree's git directory, with its index."""
    shared: str
    """The git directory with the objects; differs from `own` in a linked work tree."""


def find_repository(workspace: str) -> Repository | None:
    """Find the repository a directory belongs to."""
    top = workspace
    while True:
        directories = find_git_directories(top)
        if directories and os.path.isdir(os.path.join(directories[-1], "objects")):
            return Repository(top, directories[0], directories[-1])
        parent = os.path.dirname(top)
        if parent == top:
            return None
        top = parent


def find_git(workspace: str) -> str | None:
    """Find the `git` program outside the workspace."""
    return find_trusted_program("git", os.environ.get("PATH", os.defpath), workspace)


class GitTree:
    """The private repository of a workspace. Methods block and raise `GitError`."""

    def __init__(self, directory: str, workspace: str, repository: Repository, program: str) -> None:
        self._directory, self._workspace = directory, workspace
        self._repository, self._program = repository, program
        self._options: list[str] = []
        self._is_open = False
        self._pending: set[str] = set()
        """Tracked paths not yet in the private index."""
        self._left_out: dict[str, LeftOut] = {}
        self._nested: set[str] = set()
        self._listed: dict[str, str] = {}
        self._tree = ""
        self._deadline = 0.0

    # -- the private repository -----------------------------------------------------------------

    def is_ignored(self) -> bool:
        """Tell whether the repository ignores the whole workspace, so git wouldn't list anything."""
        self._deadline = time.monotonic() + LIMIT_S
        self._open()
        if self._repository.top == self._workspace:
            return False
        return self._run("check-ignore", "-q", "--no-index", "--", self._workspace, codes=(0, 1)).returncode == 0

    def _open(self) -> None:
        if self._is_open:
            return
        self._remove_index()
        user, theirs = self._read_settings()
        objects = os.path.join(self._repository.shared, "objects")
        if any(character in objects for character in '\n"\\#'):  # quoted, as in C (git-config(1))
            escaped = objects.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            objects = f'"{escaped}"'
        object_format = theirs.get("extensions.objectformat", "sha1")
        extension = "" if object_format == "sha1" else f"[extensions]\n\tobjectFormat = {object_format}\n"
        version = int(object_format != "sha1")
        self._write("config", f"[core]\n\trepositoryformatversion = {version}\n\tbare = false\n{extension}".encode())
        self._write("objects/info/alternates", os.fsencode(f"{objects}\n"))
        for name in ("exclude", "attributes"):
            try:
                data = read_small_file(os.path.join(self._repository.shared, "info", name), _MAX_SETTINGS_BYTES)
            except OSError:
                data = b""
            self._write(f"info/{name}", data)
        self._options = [
            word
            for setting, key in (
                ("core.excludesFile", "core.excludesfile"),
                ("core.attributesFile", "core.attributesfile"),
            )
            if key in user
            for word in ("-c", f"{setting}={os.path.expanduser(user[key])}")
        ]
        converts = any({"true", "input"} & {settings.get("core.autocrlf", "")} for settings in (user, theirs))
        self._copy_index(converts=converts)
        self._write("info/attributes", _NO_CONVERSION.encode())
        self._is_open = True

    def _read_settings(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Read the user's and the repository's settings, without included files."""
        for name in ("objects/info", "refs", "info"):
            make_private_dir(os.path.join(self._directory, name))
        self._write("HEAD", b"ref: refs/heads/none\n")
        self._write("config", b"")
        path = os.path.join(self._repository.shared, "config")
        rows = [
            self._run("config", *where, "-z", "--list", codes=(0, 1, 128), user_settings=True).stdout
            for where in ((), ("--file", path))
        ]
        user, theirs = (
            {
                key.lower(): value
                for row in os.fsdecode(data).split("\0")
                for key, _, value in [row.partition("\n")]
                if key
            }
            for data in rows
        )
        return user, theirs

    def _copy_index(self, *, converts: bool) -> None:
        """Start with the user's index, minus entries whose content differs from the file's bytes.

        The copy keeps the original's timestamp, since git rereads files changed at the moment their index was written
        (https://git-scm.com/docs/racy-git).
        """
        try:
            for name in os.listdir(self._repository.own):
                if name == "index" or name.startswith("sharedindex."):
                    shutil.copy2(os.path.join(self._repository.own, name), os.path.join(self._directory, name))
            rows = self._list("ls-files", "-z", "-s", "-v", "--full-name", top=True)
        except OSError:  # includes `GitError`
            self._remove_index()
            return
        removed: set[str] = set()
        paths: list[str] = []
        for row in rows:
            facts, _, path = row.partition("\t")
            tag, mode, _, stage = facts.split(" ")
            if tag != "H" or mode == _GITLINK or stage != "0":
                removed.add(path)
            if mode != _GITLINK:
                paths.append(path)
        removed |= set(paths) if converts else self._find_converted(paths)
        self._update_index(("--force-remove",), removed, top=True)
        prefix = os.path.relpath(self._workspace, self._repository.top)
        start = "" if prefix == os.curdir else f"{prefix}/"
        self._pending = {path[len(start) :] for path in removed & set(paths) if path.startswith(start)}

    def _find_converted(self, paths: Sequence[str]) -> set[str]:
        """Find the paths with attributes that convert their content."""
        data = b"".join(os.fsencode(f"{path}\0") for path in paths)
        output = self._run("check-attr", "-z", "--stdin", *_CONVERSIONS, data=data, top=True).stdout
        words = os.fsdecode(output).split("\0")
        return {path for path, value in zip(words[::3], words[2::3], strict=False) if value not in _PLAIN_VALUES}

    def _remove_index(self) -> None:
        """Remove the index, including a lock left by a killed run."""
        for name in os.listdir(self._directory):
            if name in {"index", "index.lock"} or name.startswith("sharedindex."):
                os.unlink(os.path.join(self._directory, name))

    # -- snapshots --------------------------------------------------------------------------------

    def scan(self) -> TreeScan:
        """Store all changes since the last scan and list the tree.

        Raises `GitError` if git failed or took too long; the last scan stays valid.
        """
        self._deadline = time.monotonic() + LIMIT_S
        self._open()
        untracked = self._list("ls-files", "-z", "-o", "--exclude-standard", "--", ".")
        modified = self._list("diff-files", "-z", "--name-only", "--relative", "--ignore-submodules=all")
        self._nested = {path.rstrip("/") for path in untracked if path.endswith("/")}
        added, removed = self._select({*untracked, *modified, *self._pending, *self._left_out})
        if removed:
            self._update_index(("--force-remove",), removed)
        if added:
            self._update_index(("--add", "--remove", "--replace"), added)
        if added or removed or not self._tree:
            self._pending.clear()
            self._listed = {
                path: facts.split(" ")[1]
                for row in self._list("ls-files", "-z", "-s")
                for facts, _, path in [row.partition("\t")]
            }
            self._tree = self._run("write-tree", "--missing-ok").stdout.decode().strip()
        notes = [
            f"{path} is a repository of its own: what commands change in it is not covered" for path in self._nested
        ]
        return TreeScan(
            entries=self._read_entries(), left_out=dict(self._left_out), notes=tuple(sorted(notes)), id=self._tree
        )

    def _select(self, candidates: set[str]) -> tuple[set[str], set[str]]:
        """Split paths into ones to store and ones to drop, noting the reason for too large ones."""
        added: set[str] = set()
        removed: set[str] = set()
        room = CONTENT_BUDGET
        left_out, self._left_out = self._left_out, {}
        for path in sorted(path for path in candidates if not path.endswith("/")):
            full = os.path.join(self._workspace, path)
            try:
                status = os.lstat(full)
            except OSError:
                removed.add(path)
                continue
            reason = left_out[path].reason if path in left_out else ""
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
                removed.add(path)  # now a directory, pipe etc.
                continue
            if not reason and status.st_size > LARGEST_FILE:
                reason = f"it has {status.st_size:,} bytes, and at most {LARGEST_FILE:,} are kept"
            if not reason and status.st_size > room:
                reason = f"{CONTENT_BUDGET:,} bytes of new content are kept at once"
            if not reason and not os.access(full, os.R_OK, follow_symlinks=False):
                reason = "it cannot be read"
            if reason:
                self._left_out[path] = LeftOut(reason, read_signature(status))
                removed.add(path)
            else:
                room -= status.st_size
                added.add(path)
        return added, {path for path in removed if path in self._listed or not self._tree}

    def _read_entries(self) -> dict[str, TreeEntry]:
        """Read the permission bits (git stores just one) and the directories (git stores none)."""
        entries: dict[str, TreeEntry] = {}
        folders = {""}
        for path in (*self._listed, *self._left_out):
            for parent in list_parents(path):
                if parent in folders:
                    break
                folders.add(parent)
        for folder in folders:
            for path, found in scan_folder(self._workspace, folder):
                key = self._listed.get(path)
                if key is None and path not in folders:
                    # Ignored, left out, a nested repository, or a directory without files.
                    entries |= _list_empty_folders(path, found) or {}
                    continue
                try:
                    entry = build_entry(found.stat(follow_symlinks=False), key or "")
                except OSError:
                    continue
                if entry is not None:
                    entries[path] = entry
        return entries

    def read_contents(self, keys: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Read stored contents, skipping missing ones (say, after the user's repository was removed).

        Raises `GitError` if git ended early.
        """
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return
        command = self._command("cat-file", "--batch")
        with subprocess.Popen(
            command,
            cwd=self._directory,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                for start in range(0, len(wanted), _BATCH_SIZE):
                    chunk = wanted[start : start + _BATCH_SIZE]
                    process.stdin.write("".join(f"{key}\n" for key in chunk).encode())
                    process.stdin.flush()
                    for key in chunk:
                        head = process.stdout.readline().split()
                        if len(head) != 3 or head[1] != b"blob":
                            continue
                        content = process.stdout.read(int(head[2]))
                        process.stdout.read(1)
                        yield key, content
            except BrokenPipeError as exc:
                raise GitError("git ended while contents were read") from exc
            finally:
                process.kill()

    # -- running git --------------------------------------------------------------------------------

    def _update_index(self, options: Sequence[str], paths: Iterable[str], *, top: bool = False) -> None:
        data = b"".join(os.fsencode(f"{path}\0") for path in sorted(paths))
        if data:
            self._run("update-index", *options, "-z", "--stdin", data=data, top=top)

    def _list(self, *arguments: str, top: bool = False) -> list[str]:
        output = os.fsdecode(self._run(*arguments, top=top).stdout)
        return [row for row in output.split("\0") if row]

    def _run(
        self,
        *arguments: str,
        data: bytes = b"",
        top: bool = False,
        codes: Sequence[int] = (0,),
        user_settings: bool = False,
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise GitTimeoutError(f"git took longer than {LIMIT_S:.0f} s")
            done = subprocess.run(
                self._command(*arguments),
                cwd=self._repository.top if top else self._workspace,
                env=self._environment(user_settings=user_settings),
                input=data,
                capture_output=True,
                timeout=left,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as exc:
            raise GitTimeoutError(f"git took longer than {LIMIT_S:.0f} s") from exc
        if done.returncode not in codes:
            lines = clean_text(done.stderr.decode("utf-8", "replace"))[0].strip().splitlines()
            reason = cut_text(lines[-1], _MAX_REASON_CHARS) if lines else f"exit code {done.returncode}"
            raise GitError(f"git {arguments[0]} failed: {reason}")
        return done

    def _command(self, *arguments: str) -> list[str]:
        settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
        return [self._program, "--no-pager", *settings, *self._options, *arguments]

    def _environment(self, *, user_settings: bool = False) -> dict[str, str]:
        """Build git's environment without the user's variables, which may name another repository or a program."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME") if name in os.environ}
        own = {} if user_settings else {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        return {
            **kept,
            **own,
            "LC_ALL": "C",
            "GIT_DIR": self._directory,
            "GIT_WORK_TREE": self._repository.top,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
        }

    def _write(self, name: str, data: bytes) -> None:
        with open(os.path.join(self._directory, name), "wb") as file:
            file.write(data)


def _list_empty_folders(path: str, found: os.DirEntry[str]) -> dict[str, TreeEntry] | None:
    """List a directory and all directories below it, or return `None` if any holds a file."""
    if not found.is_dir(follow_symlinks=False):
        return None
    try:
        entry = build_entry(found.stat(follow_symlinks=False), "")
        with os.scandir(found.path) as inner:
            folders = {} if entry is None else {path: entry}
            for child in inner:
                below = _list_empty_folders(f"{path}/{child.name}", child)
                if below is None:
                    return None
                folders |= below
            return folders
    except OSError:
        return None
