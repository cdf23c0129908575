"""Discovery, consent and loading of addons."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.addons import add_project_addon, build_source, install_addon

from indusagi.runtime import ToolCall, ToolOutcome
from induscode.addons import loader
from induscode.addons.loader import AddonConsentStore, AddonSet, discover_addons, list_search_paths, load_addons
from induscode.boot import runners
from induscode.boot.session import build_session_tools_with_addons, open_session
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from pathlib import Path


def with_card(*names: str) -> str:
    cards = ", ".join(
        f'define_tool(ToolSpec("{name}", "A card.", {{"type": "object"}}, answer, read_only=True))' for name in names
    )
    return f"{build_source('', f'cards=[{cards}]')}\nasync def answer(arguments, ctx):\n    return 'from the addon'\n"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def load(cwd: Path, **options: Any) -> AddonSet:
    return anyio.run(partial(load_addons, str(cwd), **options))


# -- discovery --------------------------------------------------------------------------------


def test_installed_addons_come_first_by_distribution_and_files_by_name(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    install_addon(site, "zeta", "a1", build_source())
    install_addon(site, "Alpha", "z2", build_source())
    install_addon(site, "Alpha", "z1", build_source())
    add_project_addon(work, "b", build_source())
    add_project_addon(work, "a", build_source())
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    addons = load(work)
    assert [(one.name, one.source) for one in addons.loaded[:3]] == [
        ("z1", "Alpha 1.0"),
        ("z2", "Alpha 1.0"),
        ("a1", "zeta 1.0"),
    ]
    assert [one.name for one in addons.loaded[3:]] == ["a", "b"]
    assert addons.notes == ()


def test_of_two_addons_of_one_name_the_first_applies(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    for distribution in ("one", "two"):
        install_addon(site, distribution, "same", build_source())
    add_project_addon(work, "same", build_source())
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    addons = load(work)
    assert [one.source for one in addons.loaded] == ["one 1.0"]
    texts = [str(note) for note in addons.notes]
    assert "addon 'same' of two 1.0: left out: one 1.0 has an addon of this name" in texts[0]
    assert "left out: one 1.0 has an addon of this name (rename the file)" in texts[1]


@pytest.mark.parametrize("place", ["project", "cwd"])
def test_a_distribution_inside_the_workspace_is_not_an_installed_one(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # `python -m induscode` puts the working directory on the path.
    install_addon(work, "planted", "evil", "raise SystemExit('ran')")
    monkeypatch.setattr(sys, "path", [str(work), *sys.path])
    monkeypatch.chdir(work if place == "cwd" else tmp_path)
    asked = tmp_path if place == "cwd" else work
    assert str(work) not in list_search_paths(str(asked))
    addons = load(asked)
    assert (addons.loaded, addons.notes) == ((), ())


def test_the_packages_of_the_running_python_are_searched_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sys.prefix)
    assert any(path.endswith("site-packages") for path in list_search_paths(sys.prefix))


def test_names_links_and_large_files_that_cannot_be_addons_are_noted(work: Path, tmp_path: Path) -> None:
    add_project_addon(work, "bad name", build_source())
    add_project_addon(work, "large", "#" * (1024 * 1024 + 1), trusted=False)
    (tmp_path / "target.py").write_text(build_source(), encoding="utf-8")
    (work / ".indusvx/addons/link.py").symlink_to(tmp_path / "target.py")
    (work / ".indusvx/addons/folder.py").mkdir()
    found = discover_addons(str(work))
    assert found.project == []
    owners = [note.owner for note in found.notes]
    assert [name for name in ("bad name", "folder", "large", "link") if not any(name in one for one in owners)] == []


@pytest.mark.parametrize(
    ("coding", "line"),
    [("utf-7", "# +AAo-raise RuntimeError"), ("unicode_escape", "# \\nraise RuntimeError"), ("latin-1", "# \xe9")],
)
def test_finding_x5_an_addon_runs_as_the_text_that_was_shown(work: Path, coding: str, line: str) -> None:
    """With such a first line, Python would read another text than the user did."""
    add_project_addon(work, "shown", f"# coding: {coding}\n{line}\n{build_source()}")
    addons = load(work)
    assert ([one.name for one in addons.loaded], addons.notes) == (["shown"], ())


def test_a_folder_that_cannot_be_listed_and_one_with_too_many_files_are_noted(work: Path) -> None:
    (work / ".indusvx").mkdir()
    (work / ".indusvx/addons").write_text("no folder", encoding="utf-8")
    assert "its addons are left out" in str(discover_addons(str(work)).notes[0])
    (work / ".indusvx/addons").unlink()
    for number in range(101):
        add_project_addon(work, f"a{number:03}", "", trusted=False)
    found = discover_addons(str(work))
    assert [found.project[-1].name, len(found.project)] == ["a099", 100]
    assert "only the first 100 of 101 addons are used" in str(found.notes[0])


def test_an_entry_point_may_name_an_addon_and_a_distribution_on_two_paths_counts_once(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = [tmp_path / "one", tmp_path / "two"]
    for site in sites:
        install_addon(site, "acme", "ready", "from induscode.addons import Addon\naddon = Addon(required=True)\n")
        install_addon(site, "acme", "bad name", build_source())
    monkeypatch.setattr(sys, "path", [*map(str, sites), *sys.path])
    addons = load(work)
    assert [(one.name, one.required) for one in addons.loaded] == [("ready", True)]
    assert {str(note).partition(": left out")[0] for note in addons.notes} == {"addon 'bad name' of acme 1.0"}


# -- consent ----------------------------------------------------------------------------------


def test_a_project_addon_without_consent_is_not_run_and_the_note_names_the_command(work: Path) -> None:
    path = add_project_addon(work, "fresh", f"import os; os.mkdir({str(work / 'ran')!r})", trusted=False)
    addons = load(work)
    assert addons.loaded == ()
    expected = f"addon 'fresh' of {path}: not loaded: it isn't trusted yet (indus addons trust fresh)"
    assert [str(note) for note in addons.notes] == [expected]
    assert not (work / "ran").exists()


def test_a_changed_file_needs_consent_again(work: Path) -> None:
    path = add_project_addon(work, "mine", build_source())
    assert [one.name for one in load(work).loaded] == ["mine"]
    path.write_text(build_source() + "#", encoding="utf-8")
    addons = load(work)
    assert addons.loaded == ()
    assert "it has changed since you trusted it (indus addons trust mine)" in str(addons.notes[0])
    path.write_text(build_source(), encoding="utf-8")
    assert [one.name for one in load(work).loaded] == ["mine"]


def test_consent_to_one_file_is_none_to_the_same_content_elsewhere(work: Path) -> None:
    add_project_addon(work, "mine", build_source())
    add_project_addon(work, "copy", build_source(), trusted=False)
    assert [one.name for one in load(work).loaded] == ["mine"]


def test_a_damaged_store_holds_no_consent(tmp_path: Path) -> None:
    path = tmp_path / "private" / "trust.json"
    store = AddonConsentStore(str(path))
    store.approve("/x.py", "d1")
    assert store.find_consent("/x.py", "d1") == "trusted"
    assert path.stat().st_mode & 0o777 == 0o600
    for text in ("[]", "{", '{"approved": {"/x.py": 5}}'):
        path.write_text(text, encoding="utf-8")
        assert store.find_consent("/x.py", "d1") == "unknown"
    assert not store.revoke("/x.py")


def test_exactly_the_bytes_with_consent_run(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add_project_addon(work, "mine", build_source())
    real = loader.discover_addons

    def discover_then_swap(cwd: str) -> object:
        found = real(cwd)
        path.write_text("raise SystemExit('the swapped file ran')", encoding="utf-8")
        return found

    monkeypatch.setattr(loader, "discover_addons", discover_then_swap)
    addons = load(work)
    assert ([one.name for one in addons.loaded], addons.notes) == (["mine"], ())


# -- loading ----------------------------------------------------------------------------------

DUCK = "type('C', (), dict.fromkeys(['label', 'description', 'parameters', 'read_only', 'run'], 1) | {'name': 'a b'})"
FAULTS = {
    "syntax": ("def", "SyntaxError"),
    "raises": ("raise ValueError('boom')", "ValueError: boom"),
    "exits": ("raise SystemExit(7)", "SystemExit: 7"),
    "no-function": ("x = 1", "it defines no function 'addon(context)'"),
    "no-callable": ("addon = 5", "addon is int"),
    "no-addon": ("def addon(context): return 5", "its function returned int, not an Addon"),
    "builder": ("def addon(context): raise KeyError('k')", "KeyError"),
    "deadline": (build_source(options="deadline_s=0"), "its deadline_s is 0"),
    "interceptor": (build_source(options="interceptors=[5]"), "int is no Interceptor"),
    "sequence": (build_source(options="interceptors=5"), "must be sequences"),
    "card": (build_source(options="cards=[5]"), "int is no card: it has no name"),
    "tool-name": (with_card("two words"), "cannot be the name of a tool"),
    "card-name": (build_source(options=f"cards=[{DUCK}]"), "cannot be the id of a capability"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_an_addon_that_cannot_be_loaded_is_named_and_the_others_are_loaded(work: Path, fault: str) -> None:
    source, message = FAULTS[fault]
    add_project_addon(work, "a-bad", source)
    add_project_addon(work, "b-good", build_source())
    addons = load(work)
    assert [one.name for one in addons.loaded] == ["b-good"]
    (note,) = addons.notes
    assert note.owner.startswith("addon 'a-bad' of ")
    assert message in note.message
    assert note.remedy == "indus addons doctor"


def test_an_import_that_hangs_is_left_out(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "LOAD_S", 0.05)
    add_project_addon(work, "slow", "async def addon(context):\n    import anyio\n    await anyio.sleep(60)\n")
    addons = load(work)
    assert addons.loaded == ()
    assert "it was not done within 0.05 s" in str(addons.notes[0])


def test_required_addons_that_are_not_loaded_are_missing_with_the_reason(work: Path) -> None:
    add_project_addon(work, "fresh", build_source(), trusted=False)
    add_project_addon(work, "mine", build_source())
    addons = load(work, required=("mine", "fresh", "gone"))
    assert [(one.name, one.required) for one in addons.loaded] == [("mine", True)]
    assert addons.missing == {
        "fresh": "not loaded: it isn't trusted yet (indus addons trust fresh)",
        "gone": "there is no such addon; see the setting addons.required",
    }
    addons = load(work, required=("mine",), enabled=False)
    assert addons.missing == {"mine": "--no-addons is given"}


def test_the_state_directory_of_an_addon_is_private(work: Path) -> None:
    source = "def addon(context):\n    context.make_state_dir()\n    return Addon()\n"
    add_project_addon(work, "mine", f"from induscode.addons import Addon\n{source}")
    addons = load(work)
    assert addons.notes == ()
    folder = os.path.join(os.environ["XDG_STATE_HOME"], "indus") if "XDG_STATE_HOME" in os.environ else None
    folder = folder or os.path.join(os.environ["HOME"], ".local/state/indus")
    assert os.stat(os.path.join(folder, "addons", "mine")).st_mode & 0o777 == 0o700


def test_addons_are_closed_in_reverse_and_a_failure_is_noted(work: Path) -> None:
    for name in ("a", "b"):
        close = f"close=lambda: os.mkdir({str(work)!r} + '/{name}' + str(len(os.listdir({str(work)!r}))))"
        add_project_addon(work, name, build_source(options=close))
    add_project_addon(work, "c", build_source(options="close=lambda: 1 / 0"))
    heard: list[object] = []
    addons = load(work, on_note=heard.append)
    anyio.run(addons.aclose)
    assert heard == [addons.notes[-1]]
    assert sorted(path.name for path in work.iterdir()) == [".indusvx", "a2", "b1"]
    assert "could not be closed: ZeroDivisionError" in str(addons.notes[-1])


# -- in a session -----------------------------------------------------------------------------


def test_cards_of_addons_are_in_the_deck_and_duplicates_are_left_out_with_a_note(work: Path) -> None:
    add_project_addon(work, "a", with_card("lucky", "read"))
    add_project_addon(work, "b", with_card("lucky", "bash"))

    # `bash` is not in this deck, and its name is taken all the same: permissions know it by name.
    async def use() -> list[str]:
        async with open_session(Invocation(cwd=str(work), tools=("read",), no_mcp=True)) as session:
            box = session.box()
            assert [one.name for one in box.descriptors()] == ["read", "lucky"]
            outcome = await box.runner.run(ToolCall("1", "lucky", {}))
            assert outcome.output == "from the addon"
            return [str(note) for note in session.notes]

    texts = anyio.run(use)
    remedy = "left out: the deck has a card of this name already (the addon must give it another name)"
    assert texts == [
        f"tool 'read' of addon 'a': {remedy}",
        f"tool 'lucky' of addon 'b': {remedy}",
        f"tool 'bash' of addon 'b': {remedy}",
    ]


def test_finding_1a14_session_tools_are_built_with_addons(work: Path) -> None:
    add_project_addon(work, "deny", build_source('def before(self, call): return Deny("never")'))
    assert runners.build_session_tools_with_addons is build_session_tools_with_addons

    async def use() -> ToolOutcome:
        box = await build_session_tools_with_addons(Invocation(cwd=str(work), no_mcp=True))
        assert box is not None
        async with box:
            assert "read" in [one.name for one in box.descriptors()]
            assert box.notes == ()
            return await box.runner.run(ToolCall("1", "ls", {}))

    assert anyio.run(use).output == "ls was not run: the addon 'deny' denies it: never"


async def test_without_tools_there_are_no_session_tools(work: Path) -> None:
    assert await build_session_tools_with_addons(Invocation(cwd=str(work), no_tools=True)) is None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        runners.nothing  # noqa: B018 — the look itself is what is tested


def test_a_session_without_addons_has_bare_cards(work: Path) -> None:
    add_project_addon(work, "deny", build_source('def before(self, call): return Deny("never")'))

    async def use() -> None:
        async with open_session(Invocation(cwd=str(work), no_addons=True, no_mcp=True)) as session:
            assert session.deck().tools() == session.native_deck().tools()

    anyio.run(use)
