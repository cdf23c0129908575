"""Every name of the specification, importable from the place where it is documented."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

TABLES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("seed_places.toml").read_text(encoding="utf-8")
)
PLACES = [
    (place, name)
    for section, rows in TABLES.items()
    if not section.endswith("members")
    for place, names in rows.items()
    for name in names.split()
]
MEMBERS = [
    (place, names.split())
    for section, rows in TABLES.items()
    if section.endswith("members")
    for place, names in rows.items()
]
NAMES: dict[str, str] = {}
for _place, _name in PLACES:
    NAMES[_place] = f"{NAMES.get(_place, '')} {_name}"


@pytest.mark.parametrize("module", list(NAMES))
def test_finding_1a15_a_module_of_the_specification_has_its_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


@pytest.mark.parametrize(("place", "members"), MEMBERS, ids=[place for place, _ in MEMBERS])
def test_finding_1a15_a_class_of_the_specification_has_its_members(place: str, members: list[str]) -> None:
    module, _, name = place.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    fields = getattr(kind, "__dataclass_fields__", {})  # a field without a default is no attribute
    assert [one for one in members if one not in fields and not hasattr(kind, one)] == []


def test_a_name_is_the_same_object_at_every_place_of_it() -> None:
    # The specification itself has two types of this name: the contract's and the bridge's.
    two = "MountedProtocolBridge"
    homes: dict[str, set[int]] = {}
    for module, name in PLACES:
        if name != two:
            homes.setdefault(name, set()).add(id(getattr(importlib.import_module(module), name)))
    assert [name for name, found in homes.items() if len(found) > 1] == []


PACKAGES = [
    "indusagi.core",
    "indusagi.runtime",
    "indusagi.capabilities",
    "indusagi.capabilities.tools",
    "indusagi.interop",
    "indusagi.interop.protocol_bridge",
    "indusagi.mcp",
    "induscode.deck",
    "induscode.deck.cards",
    "induscode.deck.mcp",
    "induscode.addons",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_finding_1a17_a_star_import_gives_the_documented_names(package: str) -> None:
    given: dict[str, object] = {}
    exec(f"from {package} import *", given)  # noqa: S102 — a star import stands at the top of a module only
    given.pop("__builtins__")
    assert set(given) == set(importlib.import_module(package).__all__)
    assert set(NAMES.get(package, "").split()) <= set(given)


def test_enrolment_names_what_it_loads_later() -> None:
    package = importlib.import_module("induscode.deck.mcp")
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018 — the look itself is what is tested
