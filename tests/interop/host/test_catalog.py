"""The catalog of a host: verbatim, in order, written once."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.host_tools import Bench

from indusagi.interop.protocol_bridge.host.catalog import Catalog, EncodedObject, ListingBuilder, build_tool_row
from indusagi.interop.protocol_bridge.rpc.transport import encode_frame
from indusagi.runtime.contract import ToolDescriptor

INFO: dict[str, Any] = {"name": "host", "version": "1"}
SCHEMA: Any = {"type": "object", "properties": {"b": {"default": 1}, "a": {"$ref": "#/$defs/x"}}}


def test_a_row_has_the_fields_of_the_descriptor_in_the_same_order() -> None:
    frozen: Any = MappingProxyType({**SCHEMA, "required": ("b",)})
    descriptor = ToolDescriptor(
        "t", "d", frozen, title="T", annotations={"readOnlyHint": True}, output_schema={"type": "object"}
    )
    assert json.dumps(build_tool_row(descriptor)) == json.dumps(
        {
            "name": "t",
            "title": "T",
            "description": "d",
            "inputSchema": {**SCHEMA, "required": ["b"]},
            "outputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True},
        }
    )


def test_a_schema_without_a_type_gets_type_object() -> None:
    assert build_tool_row(ToolDescriptor("t", "", {"properties": {}})) == {
        "name": "t",
        "description": "",
        "inputSchema": {"properties": {}, "type": "object"},
    }


def test_the_schema_of_a_remote_tool_has_objects_for_its_properties() -> None:
    # The TypeScript SDK refuses the whole list for one property that is no object, though JSON Schema allows it.
    schema: Any = {"type": "object", "properties": {"a": True, "b": False, "c": {"x": 1}, "d": "e"}, "required": "a"}
    definition: Any = {
        "inputSchema": schema,
        "outputSchema": {"type": "object", "properties": [], "required": ["a", 1]},
    }
    row = build_tool_row(ToolDescriptor("t", "", {}, definition=definition))
    assert row["inputSchema"] == {"type": "object", "properties": {"a": {}, "b": {"not": {}}, "c": {"x": 1}, "d": {}}}
    assert row["outputSchema"] == {"type": "object", "required": ["a"]}


def _deep() -> Any:
    value: Any = None
    for _ in range(5_000):
        value = {"deep": value}
    return value


@pytest.mark.parametrize("broken", [float("nan"), object(), {1: 2}, _deep()], ids=range(4))
def test_a_tool_that_json_cannot_carry_is_left_out_and_the_others_stay(broken: Any) -> None:
    bad = ToolDescriptor("bad", "", {"type": "object", "x": broken})
    good = ToolDescriptor("good", "", {"type": "object"})
    listing = ListingBuilder(INFO).build([bad, good])
    assert list(listing.schemas) == ["good"]
    assert [row["name"] for row in json.loads(listing.modern.encoded)["tools"]] == ["good"]


@given(identity=st.integers() | st.text(max_size=20), names=st.lists(st.text(max_size=5)))
def test_the_encoded_listing_equals_its_value(identity: int | str, names: list[str]) -> None:
    tools = [ToolDescriptor(name, name, {"type": "object"}) for name in names]
    for result in (ListingBuilder(INFO).build(tools).legacy, ListingBuilder(INFO).build(tools).modern):
        frame: Any = {"jsonrpc": "2.0", "id": identity, "result": result}
        plain: Any = {**frame, "result": dict(result)}
        assert json.loads(encode_frame(frame)) == json.loads(encode_frame(plain))


def test_the_listing_is_made_once_until_the_tools_change() -> None:
    bench = Bench()
    catalog = Catalog(bench.box, INFO)
    first = catalog.listing()
    assert catalog.listing() is first
    assert bench.asked == 1
    assert isinstance(first.legacy, EncodedObject)
    response: list[str] = []
    forget = catalog.listen(lambda: response.append("changed"))
    assert not catalog.refresh()
    bench.add("late", bench._echo)
    assert catalog.refresh()
    forget()
    bench.add("later", bench._echo)
    assert catalog.refresh()
    assert response == ["changed"]
    assert [*catalog.listing().schemas][-2:] == ["late", "later"]


def test_a_tool_of_a_new_box_can_be_called_before_its_change_is_announced() -> None:
    bench = Bench()
    boxes = [bench.registry.to_tool_box(bench.context)]
    catalog = Catalog(lambda: boxes[-1], INFO)
    listing = catalog.listing()
    response: list[str] = []
    catalog.listen(lambda: response.append("changed"))
    bench.add("late", bench._echo)
    boxes.append(bench.registry.to_tool_box(bench.context))
    assert (catalog.may_call("late"), catalog.may_call("later")) == (True, False)
    assert catalog.listing() is listing
    assert (catalog.refresh(), response) == (True, ["changed"])
    assert (catalog.may_call("late"), catalog.may_call("later")) == (True, False)
