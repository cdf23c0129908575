"""Addon loading: imports and builds the addons with consent, each under a deadline.

Addons that can't be loaded are skipped with a note. A project file runs as exactly the bytes the consent covers:
they're compiled from memory, never read a second time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.core.app_dirs import state_dir
from indusagi.core.faults import Note
from induscode.addons.chain import InterceptorChain, LoadedAddon, call_hook
from induscode.addons.contract import Addon, AddonContext, AddonError, Interceptor
from induscode.addons.discovery import DiscoveredAddons, InstalledAddon, ProjectAddon, discover_addons
from induscode.deck.contract import DeckFault, capability_id, find_missing_members

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.context import ContextId
    from induscode.deck.contract import Capability

LOAD_S = 15.0
"""Time to import and build one addon."""
_MAX_DEADLINE_S = 60.0
_FACTORY = "addon"


class AddonSet:
    """The addons of one session: their cards, their chain of interceptors, and notes.

    Args:
        loaded: In order.
        notes: About skipped addons.
        missing: Required addons that weren't loaded, with the reason.
        main: The session's context. Calls in another one come from sub-agents.
        on_note: Called with each later note about an addon that failed in a call.
    """

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
        self.has_cards = any(one.addon.cards for one in self.loaded)
        """Whether an addon contributes a card."""
        self._chain = InterceptorChain(self.loaded, main, self.missing, self._report)

    @property
    def notes(self) -> Sequence[Note]:
        """Notes about addons skipped at the start or since."""
        return tuple(self._notes)

    def _report(self, note: Note) -> None:
        self._notes.append(note)
        self._on_note(note)

    @property
    def skipped(self) -> Collection[str]:
        """Names of addons whose hooks aren't called any more after a failure."""
        return self._chain.skipped

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

    def wrap(self, card: Capability) -> Capability:
        """Put the interceptors around a card, which must already have its permission checks."""
        return self._chain.wrap(card)

    async def aclose(self) -> None:
        """Call every addon's closing function, last loaded first."""
        for loaded in reversed(self.loaded):
            if loaded.addon.close is not None:
                try:
                    await call_hook(loaded.addon.close, deadline_s=loaded.addon.deadline_s)
                except AddonError as exc:
                    self._report(Note(f"addon {loaded.name!r} of {loaded.source}", f"could not be closed: {exc}"))


async def load_addons(
    cwd: str,
    main: ContextId | None = None,
    *,
    required: Sequence[str] = (),
    enabled: bool = True,
    on_note: Callable[[Note], None] = lambda _: None,
) -> AddonSet:
    """Load a workspace's addons.

    Args:
        cwd: The workspace.
        main: The session's context.
        required: Names that must be loaded. If one isn't, every call fails.
        enabled: False loads none, so required ones are missing.
        on_note: Called with each later note about an addon that failed in a call.
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
    return AddonSet(loaded, notes, missing, main, on_note)


def describe_refusal(source: InstalledAddon | ProjectAddon) -> Note | None:
    """Return the note about an addon without consent, or None if it may be loaded."""
    if isinstance(source, InstalledAddon) or source.consent == "trusted":
        return None
    reason = "it has changed since you consented to it" if source.consent == "changed" else "it needs your consent"
    return Note(f"addon {source.name!r} of {source.file}", f"not loaded: {reason}", f"indus addons trust {source.name}")


async def load_addon(source: InstalledAddon | ProjectAddon, cwd: str) -> Addon:
    """Import and build one addon, which must have consent.

    Raises:
        AddonError: It can't be imported or built, or takes too long.
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
