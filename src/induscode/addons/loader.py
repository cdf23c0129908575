"""Addon discovery and loading: finds addons without importing any, and builds those with consent under a deadline.

Entry points in the group `induscode.addons`
(https://packaging.python.org/en/latest/specifications/entry-points/) are ordered by distribution and name, files in
`.indusvx/addons/` by name. If two addons have the same name, the first wins.

Addons that can't be loaded are skipped with a note. A project file runs as exactly the bytes the consent covers:
they're compiled from memory, never read a second time.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.capabilities.context import ContextId
from indusagi.core.app_dirs import PrivateJsonFile, is_within, read_small_file, state_dir
from indusagi.core.faults import Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, now_ms
from induscode.addons.chain import InterceptorChain, LoadedAddon, call_hook
from induscode.addons.contract import Addon, AddonContext, AddonError, Interceptor
from induscode.core.consent import Consent, ConsentState
from induscode.deck.contract import Capability, DeckFault, capability_id, find_missing_members

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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

    @property
    def label(self) -> str:
        """Its name among skills and hooks."""
        return self.name

    @property
    def text(self) -> str:
        """Its code, for a question."""
        return self.content.decode("utf-8", "replace")

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
        is_own = is_within(real, *own)
        if os.path.isabs(path) and (is_own or not is_within(real, *untrusted)):
            paths.append(path)
    return list(dict.fromkeys(paths))


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
        return PrivateJsonFile(
            path,
            _MAX_BYTES,
            _parse_consents,
            lambda consents: {"version": _VERSION, "approved": dict(sorted(consents.items()))},
        )

    def find_consent(self, file: str, digest: str) -> ConsentState:
        """Look up the consent to a file with this content. A damaged store counts as empty.

        Raises `OSError` if there's no home directory.
        """
        known = self._file().read()[0].get(os.path.realpath(file))
        if known is None:
            return "unknown"
        return "trusted" if known.get("digest") == digest else "changed"

    def approve(self, file: str, digest: str) -> None:
        """Store the consent to a file with this content; raises `OSError` if the store can't be written."""
        with self._file().change() as consents:
            consents[os.path.realpath(file)] = {"digest": digest, "at": iso_utc(now_ms())}

    def revoke(self, file: str) -> bool:
        """Remove the consent to a file, and return whether there was one.

        Raises `OSError` if the store can't be written.
        """
        with self._file().change() as consents:
            return consents.pop(os.path.realpath(file), None) is not None


def _parse_consents(document: JsonValue) -> tuple[dict[str, JsonObject], bool]:
    rows = document.get("approved") if is_json_object(document) else None
    if not is_json_object(rows):
        return {}, True
    return {file: row for file, row in rows.items() if is_json_object(row)}, False


# -- loading ----------------------------------------------------------------------------------


LOAD_S = 15.0
"""Time to import and build one addon."""
_MAX_DEADLINE_S = 60.0
_FACTORY = "addon"


class AddonSet(InterceptorChain):
    """The addons of one session: their cards, their chain of interceptors, and notes. Arguments as in the chain."""

    def __init__(
        self,
        loaded: Sequence[LoadedAddon] = (),
        notes: Iterable[Note] = (),
        missing: Mapping[str, str] | None = None,
        main: ContextId | None = None,
        on_note: Callable[[Note], None] = lambda _: None,
    ) -> None:
        self.loaded = tuple(loaded)
        self.missing = dict(missing or {})
        self._notes = [*notes]
        self._on_note = on_note
        self.intercepts = bool(self.missing) or any(one.addon.interceptors for one in self.loaded)
        """Whether calls pass interceptors, or fail because a required addon is missing."""
        super().__init__(self.loaded, main, self.missing, self._add_note)

    @property
    def has_cards(self) -> bool:
        """Whether an addon contributes a card now."""
        return any(one.addon.cards for one in self.loaded)

    @property
    def notes(self) -> Sequence[Note]:
        """Notes about addons skipped at the start or since."""
        return tuple(self._notes)

    def _add_note(self, note: Note) -> None:
        self._notes.append(note)
        self._on_note(note)

    def select_cards(self, taken: Iterable[str]) -> tuple[Sequence[Capability], Sequence[Note]]:
        """Select the cards with unused names, in order. Returns them, and a note for each of the others."""
        names = {*taken}
        cards: list[Capability] = []
        notes: list[Note] = []
        for loaded in self.loaded:
            for card in loaded.addon.cards:
                if card.name in names:
                    message = "left out: the deck has a card of this name already"
                    owner = f"tool {card.name!r} of addon {loaded.name!r}"
                    notes.append(Note(owner, message, "the addon must give it another name"))
                else:
                    names.add(card.name)
                    cards.append(card)
        return cards, notes

    async def aclose(self) -> None:
        """Call every addon's closing function, last loaded first."""
        for loaded in reversed(self.loaded):
            if loaded.addon.close is not None:
                try:
                    await call_hook(loaded.addon.close, deadline_s=loaded.addon.deadline_s)
                except AddonError as exc:
                    self._add_note(Note(f"addon {loaded.name!r} of {loaded.source}", f"could not be closed: {exc}"))


async def load_addons(
    cwd: str,
    main: ContextId | None = None,
    *,
    required: Sequence[str] = (),
    enabled: bool = True,
    on_note: Callable[[Note], None] = lambda _: None,
    also: Sequence[LoadedAddon] = (),
) -> AddonSet:
    """Load a workspace's addons, or none unless `enabled`.

    If a `required` addon isn't loaded, every call fails. Calls in a context other than `main` come from sub-agents.
    `on_note` receives each later note about an addon that failed in a call. Addons in `also` come last.
    """
    found = await to_thread.run_sync(discover_addons, cwd) if enabled else DiscoveredAddons()
    notes = [*found.notes]
    loaded: list[LoadedAddon] = []
    reasons: dict[str, str] = {}
    for source in (*found.installed, *found.project):
        refusal = describe_refusal(source)
        if refusal is None:
            try:
                addon = await load_addon(source, cwd)
            except AddonError as exc:
                owner = f"addon {source.name!r} of {source.source}"
                refusal = Note(owner, f"left out: {exc}", "indus addons doctor")
            else:
                is_required = addon.required or source.name in required
                loaded.append(LoadedAddon(source.name, source.source, addon, is_required))
                continue
        notes.append(refusal)
        reasons[source.name] = f"{refusal.message} ({refusal.remedy})"
    absent = "--no-addons is given" if not enabled else "there is no such addon; see the setting addons.required"
    names = {one.name for one in loaded}
    missing = {name: reasons.get(name, absent) for name in required if name not in names}
    return AddonSet([*loaded, *also], notes, missing, main, on_note)


def describe_refusal(source: InstalledAddon | ProjectAddon) -> Note | None:
    """Return the note about an addon without consent, or None if it may be loaded."""
    if isinstance(source, InstalledAddon) or source.consent == "trusted":
        return None
    reason = "it has changed since you trusted it" if source.consent == "changed" else "it isn't trusted yet"
    return Note(f"addon {source.name!r} of {source.file}", f"not loaded: {reason}", f"indus addons trust {source.name}")


async def load_addon(source: InstalledAddon | ProjectAddon, cwd: str) -> Addon:
    """Import and build one addon, which must have consent.

    Raises `AddonError` if it can't be imported or built, or takes too long.
    """

    def build() -> object:
        folder = os.path.join(state_dir(), "addons", source.name)
        context = AddonContext(name=source.name, cwd=cwd, state_dir=folder)
        factory: object = source.entry.load() if isinstance(source, InstalledAddon) else _import_file(source)
        if isinstance(factory, Addon):
            return factory
        if not callable(factory):
            raise AddonError(f"{_FACTORY} is {type(factory).__name__}, not a function that takes an AddonContext")
        return cast("Callable[[AddonContext], object]", factory)(context)

    addon = await call_hook(build, deadline_s=LOAD_S)
    if not isinstance(addon, Addon):
        raise AddonError(f"its function returned {type(addon).__name__}, not an Addon")
    return _check_addon(addon)


def _import_file(source: ProjectAddon) -> object:
    """Run the content of a project file as a separate module, and return its factory."""
    module = ModuleType(f"induscode_project_addon_{source.digest[:16]}")
    module.__file__ = source.file
    # Data classes and pickles look up their module here.
    sys.modules[module.__name__] = module
    # Decode as UTF-8, as the user read it: a `coding` line could make Python run another text.
    code = compile(source.content.decode("utf-8-sig"), source.file, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 — the user consented to exactly these bytes
    try:
        return cast("object", getattr(module, _FACTORY))
    except AttributeError:
        message = f"it defines no function '{_FACTORY}(context)' that returns an Addon"
        raise AddonError(message) from None


def _check_addon(addon: Addon) -> Addon:
    """Check the parts of an addon, which its own code has built."""
    limit = cast("object", addon.deadline_s)
    if not isinstance(limit, int | float) or not 0 < limit <= _MAX_DEADLINE_S:
        raise AddonError(f"its deadline_s is {limit!r}: more than 0 and at most {_MAX_DEADLINE_S:g} seconds")
    try:
        interceptors, cards = tuple(addon.interceptors), tuple(addon.cards)
    except TypeError as exc:
        raise AddonError(f"its interceptors and cards must be sequences: {exc}") from exc
    for interceptor in cast("tuple[object, ...]", interceptors):
        if not isinstance(interceptor, Interceptor):
            raise AddonError(f"{type(interceptor).__name__} is no Interceptor of induscode.addons")
    for card in cards:
        missing = find_missing_members(card)
        if missing:
            raise AddonError(f"{type(card).__name__} is no card: it has no {', '.join(missing)}")
        try:
            capability_id(card.name)
        except DeckFault as exc:
            raise AddonError(str(exc)) from exc
    return replace(addon, interceptors=interceptors, cards=cards)
