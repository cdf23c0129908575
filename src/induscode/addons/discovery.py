"""Addon discovery, without importing any: entry points of installed distributions, then files of the project.

Entry points in the group `induscode.addons`
(https://packaging.python.org/en/latest/specifications/entry-points/) are ordered by distribution and name, files in
`.indusvx/addons/` by name. If two addons have the same name, the first wins.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import sys
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import PrivateJsonFile, read_small_file, state_dir
from indusagi.core.faults import Note, describe_error
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, now_ms
from induscode.core.consent import Consent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.core.consent import ConsentState

GROUP = "induscode.addons"
PROJECT_DIR = os.path.join(".indusvx", "addons")
_MAX_ADDON_BYTES = 1024 * 1024
_MAX_TABLE_BYTES = 1024 * 1024
_MAX_FILES = 100
_BAD_NAME = "left out: its name has other characters than letters, digits, '_', '-' and '.'"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@record(kw_only=True)
class InstalledAddon:
    """An entry point of an installed distribution. The user consented by installing it."""

    name: str
    distribution: str
    version: str
    entry: EntryPoint

    @property
    def source(self) -> str:
        """Distribution and version."""
        return f"{self.distribution} {self.version}"


@record(kw_only=True)
class ProjectAddon:
    """A project file, with its content and the consent to exactly that content."""

    name: str
    file: str
    content: bytes
    digest: str
    consent: ConsentState

    @property
    def source(self) -> str:
        """Path of the file."""
        return self.file

    def describe(self) -> Consent:
        """Build the question about loading it. The digest is the one `sha256sum` prints."""
        size = format_count(len(self.content.splitlines()), "line")
        changed = ["CHANGED since it was consented to"] if self.consent == "changed" else []
        warning = "it runs with all your rights and sees every call and result"
        return Consent(f"addon {self.name} of {self.file}", self.digest, (size, *changed), (warning,))


@record
class DiscoveredAddons:
    """A run's addons in order, loaded or not."""

    installed: Sequence[InstalledAddon] = ()
    project: Sequence[ProjectAddon] = ()
    notes: Sequence[Note] = ()


def discover_addons(cwd: str, store: AddonConsentStore | None = None) -> DiscoveredAddons:
    """Find a workspace's addons without importing them. Blocks."""
    notes: list[Note] = []
    installed = _find_installed(cwd, notes)
    taken = {addon.name: addon.source for addon in installed}
    project: list[ProjectAddon] = []
    for addon in _find_project(cwd, store or AddonConsentStore(), notes):
        if addon.name in taken:
            message = f"left out: {taken[addon.name]} has an addon of this name"
            notes.append(Note(f"addon {addon.name!r} of {addon.file}", message, "rename the file"))
        else:
            project.append(addon)
    return DiscoveredAddons(installed, project, notes)


# -- installed distributions ------------------------------------------------------------------


def list_search_paths(cwd: str) -> list[str]:
    """List the directories of `sys.path` to search for this user's distributions.

    Skips directories inside the workspace unless they belong to the running Python: `python -m induscode` puts the
    working directory on the path, and code from a project needs consent.
    """
    own = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, site.getuserbase())]
    untrusted = [os.path.realpath(path) for path in (cwd, os.getcwd())]
    paths: list[str] = []
    for path in sys.path:
        real = os.path.realpath(path)
        is_own = any(_is_inside(real, folder) for folder in own)
        if os.path.isabs(path) and (is_own or not any(_is_inside(real, folder) for folder in untrusted)):
            paths.append(path)
    return list(dict.fromkeys(paths))


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _find_installed(cwd: str, notes: list[Note]) -> list[InstalledAddon]:
    # Importing `importlib.metadata` takes 50 ms, so do it only if a table names the group.
    paths = [path for path in list_search_paths(cwd) if _has_addons(path)]
    if not paths:
        return []
    from importlib.metadata import distributions  # noqa: PLC0415 — see above

    entries: list[InstalledAddon] = []
    for distribution in distributions(path=paths):
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                owner, version = distribution.metadata["Name"], distribution.version
                entries.append(InstalledAddon(name=entry.name, distribution=owner, version=version, entry=entry))
    entries.sort(key=lambda addon: (addon.distribution.lower(), addon.name))
    found: dict[str, InstalledAddon] = {}
    for addon in entries:
        first = found.get(addon.name)
        if _NAME.fullmatch(addon.name) is None:
            notes.append(Note(f"addon {addon.name!r} of {addon.source}", _BAD_NAME, "ask its author to rename it"))
        elif first is None:
            found[addon.name] = addon
        elif first.distribution != addon.distribution:  # one distribution may be on two paths
            message = f"left out: {first.source} has an addon of this name"
            notes.append(Note(f"addon {addon.name!r} of {addon.source}", message, "uninstall one of them"))
    return list(found.values())


def _has_addons(path: str) -> bool:
    """Return whether a distribution in a directory has entry points in the group."""
    try:
        with os.scandir(path) as entries:
            folders = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return False  # `sys.path` may name missing directories and archives
    for folder in folders:
        try:
            table = read_small_file(os.path.join(folder, "entry_points.txt"), _MAX_TABLE_BYTES)
        except OSError:
            continue  # most distributions have no table
        if GROUP.encode() in table:
            return True
    return False


# -- project files ----------------------------------------------------------------------------


def _find_project(cwd: str, store: AddonConsentStore, notes: list[Note]) -> list[ProjectAddon]:
    folder = os.path.join(cwd, PROJECT_DIR)
    try:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    except OSError as exc:
        if os.path.lexists(folder):
            notes.append(Note(folder, f"its addons are left out: {describe_error(exc)}"))
        return []
    if len(files) > _MAX_FILES:
        message = f"only the first {_MAX_FILES} of {len(files):,} addons are used"
        notes.append(Note(folder, message, "remove some"))
    found: list[ProjectAddon] = []
    for file in files[:_MAX_FILES]:
        path, name = os.path.join(folder, file), file.removesuffix(".py")
        if _NAME.fullmatch(name) is None:
            notes.append(Note(f"addon {path!r}", _BAD_NAME, "rename the file"))
            continue
        try:
            # A link could point to another file between the question and the load.
            content = read_small_file(path, _MAX_ADDON_BYTES, follow=False)
            digest = digest_content(content)
            consent = store.find_consent(path, digest)
        except OSError as exc:
            notes.append(Note(f"addon {name!r} of {path}", f"left out: it cannot be read: {describe_error(exc)}"))
            continue
        found.append(ProjectAddon(name=name, file=path, content=content, digest=digest, consent=consent))
    return found


# -- consent ----------------------------------------------------------------------------------
#
# An addon runs with the user's rights, so a project file is only loaded after the user has agreed to its exact content.
# The consent names the file and the digest of its bytes; a changed file needs a new one.


_FILE_NAME = "addon-trust.json"
_VERSION = 1
_MAX_BYTES = 4 * 1024 * 1024


def digest_content(content: bytes) -> str:
    """Digest a file's content (SHA-256, as `sha256sum` prints it)."""
    return hashlib.sha256(content).hexdigest()


class AddonConsentStore:
    """This user's consents to project files. Its methods block."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    def _file(self) -> PrivateJsonFile[dict[str, JsonObject]]:
        path = self._path or os.path.join(state_dir(), _FILE_NAME)
        return PrivateJsonFile(path, _MAX_BYTES, _parse_consents, _dump_consents)

    def find_consent(self, file: str, digest: str) -> ConsentState:
        """Look up the consent to a file with this content. A damaged store counts as empty.

        Raises:
            OSError: There's no home directory.
        """
        known = self._file().read()[0].get(os.path.realpath(file))
        if known is None:
            return "unknown"
        return "trusted" if known.get("digest") == digest else "changed"

    def approve(self, file: str, digest: str) -> None:
        """Store the consent to a file with this content.

        Raises:
            OSError: The store can't be written.
        """
        with self._file().change() as consents:
            consents[os.path.realpath(file)] = {"digest": digest, "at": iso_utc(now_ms())}

    def revoke(self, file: str) -> bool:
        """Remove the consent to a file, and return whether there was one.

        Raises:
            OSError: The store can't be written.
        """
        with self._file().change() as consents:
            return consents.pop(os.path.realpath(file), None) is not None


def _parse_consents(document: JsonValue) -> tuple[dict[str, JsonObject], bool]:
    rows = document.get("approved") if is_json_object(document) else None
    if not is_json_object(rows):
        return {}, True
    return {file: row for file, row in rows.items() if is_json_object(row)}, False


def _dump_consents(consents: dict[str, JsonObject]) -> JsonValue:
    return {"version": _VERSION, "approved": dict(sorted(consents.items()))}
