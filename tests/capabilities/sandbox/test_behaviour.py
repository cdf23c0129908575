"""What counts as behaviour of a server, and the profile that allows it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.sandbox.behaviour import Behaviour, SandboxPlaces, parse_behaviour
from indusagi.capabilities.sandbox.profile import ServerProfile, format_profile
from indusagi.capabilities.sandbox.trace import SandboxTrace, Sighting, SortedSightings

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.sandbox.trace import Use


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a project, notes and secrets."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("notes/today.md", ".ssh/id_ed25519", ".toolrc", "project/.git/hooks/x", "project/.env", "data/a.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def sort(home: Path, *sightings: Sighting, **places: tuple[tuple[str, str], ...]) -> SortedSightings:
    found = SandboxPlaces(
        home=str(home), workspace=f"{home}/project", package=(f"{home}/project",), **{"read": (), "write": (), **places}
    )
    return SortedSightings(sightings, found)


@pytest.mark.parametrize(
    ("use", "path", "allowed", "read", "write"),
    [
        ("read", "notes", False, ("~/notes",), ()),
        ("read", "notes/missing.md", False, (), ()),
        ("probe", "notes", False, (), ()),
        ("read", ".toolrc", False, (), ()),
        ("read", ".ssh/id_ed25519", False, (), ()),
        ("read", "project/.env", True, (), ()),
        ("read", ".", False, (), ()),
        ("write", "project/out/report.txt", False, (), (".",)),
        ("write", "project/out.txt", True, (), (".",)),
        ("write", "project/.git/hooks/post-commit", False, (), ()),
        ("write", "notes/new.md", True, (), ()),
        ("write", "notes/today.md", True, (), ("~/notes",)),
        ("write", ".cache/x", True, (), ()),
        ("socket", "notes", False, (), ()),
    ],
)
def test_only_what_a_server_opened_and_may_be_given_counts(
    use: Use, path: str, *, allowed: bool, read: tuple[str, ...], write: tuple[str, ...], home: Path
) -> None:
    found = sort(home, Sighting(use, os.path.normpath(home / path), allowed)).build_behaviour(())
    assert (found.read, found.write) == (read, write)


def test_credentials_and_sockets_are_never_proposed_and_named_with_their_key(home: Path) -> None:
    found = sort(
        home,
        Sighting("probe", f"{home}/.ssh/id_ed25519", allowed=False),
        Sighting("socket", f"{home}/notes", allowed=False),
        Sighting("write", f"{home}/project/.git/hooks/x", allowed=False),
    )
    assert found.build_behaviour((), with_asked="") == Behaviour()
    assert [(one.target, one.key) for one in found.withheld] == [
        ("~/.ssh/id_ed25519", "read"),
        ("~/notes", "read"),
        (".git/hooks", "write"),
    ]


def test_what_lies_around_its_package_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.lexists", str.isprintable)  # everything exists
    places = SandboxPlaces(home="/nonexistent", workspace=None, package=("/projects/a",), read=(), write=())
    seen = (Sighting("read", path, allowed=False) for path in ("/projects", "/projects/b"))
    assert SortedSightings(seen, places).build_behaviour(()).read == ("/projects/b",)


def test_a_path_of_the_profile_counts_as_it_is_written(home: Path) -> None:
    seen = Sighting("read", f"{home}/notes/today.md", allowed=True)
    assert sort(home, seen, read=((f"{home}/notes", "~/notes"),)).build_behaviour(()).read == ("~/notes",)


def test_many_files_of_a_directory_become_the_directory(home: Path) -> None:
    files = [home / "notes" / f"{number}.md" for number in range(12)]
    for file in files:
        file.touch()
    found = sort(home, *(Sighting("read", str(file), allowed=False) for file in files))
    assert found.build_behaviour(()).read == ("~/notes",)


def test_a_profile_allows_exactly_what_was_used() -> None:
    used = Behaviour(hosts=("api.example.com:443",), read=("~/notes",), write=(".",), programs=("node",))
    assert format_profile(ServerProfile(name="strict", read=("~/more",)).allow(used)) == {
        "profile": "strict",
        "read": ["~/more", "~/notes"],
        "write": ["."],
        "hosts": ["api.example.com:443"],
    }
    alone = ServerProfile(name="strict").allow(Behaviour())
    assert format_profile(alone) == {"profile": "strict", "hosts": []}
    assert (alone.needs_proxy, ServerProfile(name="strict").needs_proxy) == (True, False)  # to notice its first host
    assert format_profile(ServerProfile().allow(Behaviour())) == {"profile": "standard", "hosts": []}


def test_a_behaviour_survives_the_lock_file_and_damage() -> None:
    used = Behaviour(hosts=("a:1",), programs=("node",))
    assert parse_behaviour(used.as_json()) == used
    assert parse_behaviour({"hosts": ["b:2", 3], "read": "all", "more": 1}) == Behaviour(hosts=("b:2",))
    assert used | Behaviour(hosts=("b:2",)) == Behaviour(hosts=("a:1", "b:2"), programs=("node",))


@pytest.mark.parametrize(("sent", "shown"), [(b"no filters", "no filters"), (b"", "the launcher gave no descriptor")])
def test_a_launcher_that_cannot_watch_says_why(tmp_path: Path, sent: bytes, shown: str) -> None:
    trace = SandboxTrace()
    trace.open(str(tmp_path / "trace"))
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.connect(str(tmp_path / "trace"))
        launcher.sendall(sent)
    trace.close()
    assert trace.missing == shown
