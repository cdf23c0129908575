"""Values are frozen at run time: records, the types of the specification, and the JSON inside a ledger."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.architecture.test_seed_names import NAMES

from indusagi.core.records import FrozenDict, FrozenList, freeze_json
from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor
from induscode.deck.mcp.ledger import BridgeCapability, BridgeLedger, EnrollRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from indusagi.core.json import JsonObject

ROOT = Path(__file__).parents[2]
AT = "2026-11-18T04:00:00Z"


def find_specified_values() -> Iterator[type[Any]]:
    found: dict[str, type[Any]] = {}
    for module, names in NAMES.items():
        for name in names.split():
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) and dataclasses.is_dataclass(value):
                found[value.__qualname__] = value
    return iter(found.values())


SPECIFIED = sorted(find_specified_values(), key=lambda one: one.__qualname__)


def make_ledger() -> BridgeLedger:
    ledger = BridgeLedger.empty()
    for name in ("a", "b"):
        schema: JsonObject = {"type": "object", "properties": {"x": {"enum": [1, {"deep": [2]}]}}, "required": ["x"]}
        card = BridgeCapability(f"s__{name}", "Does it.", schema, None, ref=RemoteToolRef("s", name))
        ledger = ledger.enroll(EnrollRequest(card, "s"), AT)
    return ledger


def test_the_walk_finds_the_types_of_the_specification() -> None:
    assert {"BridgeEntry", "LedgerSnapshot", "RemoteTool", "StdioServerConfig", "ToolCall"} <= {
        one.__qualname__ for one in SPECIFIED
    }
    assert len(SPECIFIED) > 30


@pytest.mark.parametrize("kind", SPECIFIED, ids=[one.__qualname__ for one in SPECIFIED])
def test_finding_sa_fields_of_specified_types_cannot_be_assigned(kind: type[Any]) -> None:
    value = object.__new__(kind)
    for one in dataclasses.fields(kind):
        with pytest.raises(AttributeError):
            setattr(value, one.name, None)
        with pytest.raises(AttributeError):
            delattr(value, one.name)
    with pytest.raises((AttributeError, TypeError)):
        value.new_attribute = 1


def test_finding_sa_history_cannot_be_rewritten() -> None:
    ledger = make_ledger()
    with pytest.raises(AttributeError):
        ledger.log[0].seq = 77  # type: ignore[misc] — what is tested
    with pytest.raises(AttributeError):
        ledger.snapshot.high_water = 0  # type: ignore[misc] — what is tested
    for name in ("log", "snapshot", "next_seq", "other"):
        with pytest.raises(AttributeError):
            setattr(ledger, name, ())
    with pytest.raises(TypeError):
        ledger.log[0] = ledger.log[1]  # type: ignore[index] — what is tested
    assert [entry.seq for entry in ledger.log] == [1, 2]


def walk_containers(value: Any, path: str = "ledger") -> Iterator[tuple[str, Any]]:
    """Yield every container that can be reached from a value through fields, keys and items."""
    below: dict[str, Any] = {}
    is_mapping = hasattr(value, "keys")
    if is_mapping or hasattr(value, "append"):
        yield path, value
    if is_mapping:
        below = {f"[{key!r}]": value[key] for key in value}
    elif isinstance(value, (list, tuple)):
        below = {f"[{index}]": one for index, one in enumerate(cast("list[Any]", value))}
    elif dataclasses.is_dataclass(value):
        below = {f".{one.name}": getattr(value, one.name) for one in dataclasses.fields(value)}
    for step, one in below.items():
        yield from walk_containers(one, path + step)


CHANGES: dict[str, Callable[[Any], object]] = {
    "set": lambda one: one.__setitem__(0, 1),
    "delete": lambda one: one.__delitem__(next(iter(one)) if hasattr(one, "keys") else 0),
    "clear": lambda one: one.clear(),
    "pop": lambda one: one.pop(0),
    "add": lambda one: one.update(x=1) if hasattr(one, "keys") else one.append(1),
    "sort": lambda one: one.setdefault("x", 1) if hasattr(one, "keys") else one.sort(),
    "merge": lambda one: one.__ior__({}) if hasattr(one, "keys") else one.__iadd__([1]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_finding_sa_no_container_inside_a_ledger_can_be_changed(change: Callable[[Any], object]) -> None:
    ledger = make_ledger()
    found = dict(walk_containers([*ledger.log, ledger.snapshot]))
    found.pop("ledger")  # the list of this test
    assert len(found) > 20, found
    for container in found.values():
        with pytest.raises((TypeError, AttributeError)):
            change(container)
    assert found == {path: one for path, one in walk_containers([*ledger.log, ledger.snapshot]) if path != "ledger"}


def test_finding_sa_a_change_of_the_listed_row_changes_no_tool() -> None:
    row: JsonObject = {"name": "a", "inputSchema": {"type": "object", "properties": {}}}
    tool = RemoteTool(RemoteToolRef("s", "a"), ToolDescriptor("s__a", "", row["inputSchema"], definition=row), raw=row)  # type: ignore[arg-type]
    assert tool.descriptor.definition is tool.raw
    row["inputSchema"] = {"changed": True}
    assert tool.raw["inputSchema"] == {"type": "object", "properties": {}}
    card = BridgeCapability.from_definition(tool.descriptor, tool.ref, tool.raw)
    assert card.raw is tool.raw, "a frozen value is used as it is"
    assert card.descriptor is tool.descriptor


def test_frozen_json_reads_copies_and_encodes_as_plain_json() -> None:
    plain: Any = {"a": [1, {"b": None}], "c": {}}
    frozen = freeze_json(plain)
    assert frozen == plain
    assert isinstance(frozen, FrozenDict)
    assert isinstance(frozen["a"], FrozenList)
    assert freeze_json(frozen) is frozen
    for copied in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):  # noqa: S301 — our own
        assert copied == plain
        copied["a"][1]["b"] = 2
        copied["a"].append(3)
    assert type(copy.copy(frozen)) is dict
    assert type(frozen | {"d": 1}) is dict
    assert frozen == plain


def test_deep_json_is_frozen_as_far_as_schemas_reach() -> None:
    value: Any = []
    for _ in range(5_000):
        value = [value]
    assert isinstance(freeze_json(value), FrozenList)


def test_values_are_records_and_state_that_changes_is_a_dataclass() -> None:
    """One rule: see `indusagi.core.records`."""
    frozen = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.match(r"\s*@dataclass\(.*frozen", line)
    ]
    assert frozen == [], "use @record"


def test_every_table_of_the_specification_was_walked() -> None:
    tables = tomllib.loads((Path(__file__).parent / "seed_places.toml").read_text("utf-8"))
    modules = {module for title, rows in tables.items() if not title.endswith("members") for module in rows}
    assert modules == set(NAMES)
