"""What the headers of a request must say, judged by us and by the SDK, and what that loads."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp.shared import inbound
from tests.support.scripts import unmeasured

from indusagi.interop.protocol_bridge.rpc.mcp_headers import STATUSES, check_headers, decode_header_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.interop.protocol_bridge.rpc.mcp_headers import RequestProblem

VERSION = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
STAMP: dict[str, Any] = {VERSION_KEY: VERSION, CAPABILITIES_KEY: {}}
HeaderLines = list[tuple[str, str]]


def wrapped(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def verdict(lines: HeaderLines, frame: dict[str, Any], schema: Any = None) -> tuple[int, int] | None:
    found = check_headers(lines, frame, lambda name: schema if name == "tool" else None)
    return None if found is None else (found.code, found.status)


def theirs(lines: HeaderLines, frame: dict[str, Any], schema: Any = None) -> tuple[int, int] | None:
    """Have the SDK say what it thinks, in the order in which its own server asks."""
    found: Any = None
    if inbound.find_duplicated_routing_header(lines) is not None:
        found = inbound.InboundLadderRejection(-32020, "")
    else:
        headers = dict(lines)
        found = inbound.classify_inbound_request(frame, headers=headers)
        if isinstance(found, inbound.InboundModernRoute):
            found = None
            if frame["method"] == "tools/call" and frame["params"].get("name") == "tool":
                arguments: Any = frame["params"].get("arguments")
                given = cast("dict[str, Any]", arguments if isinstance(arguments, dict) else {})
                found = inbound.validate_mcp_param_headers(schema, given, headers)
    return None if found is None else (found.code, inbound.ERROR_CODE_HTTP_STATUS[found.code])


# -- the routing headers --------------------------------------------------------------------

METHODS = st.sampled_from(["tools/call", "prompts/get", "resources/read", "tools/list", "server/discover", "", "x"])
NAMES = st.sampled_from(["tool", "grüße", " tool", "", "=?base64?dG9vbA==?=", "file:///a b"])
ODD = st.one_of(st.none(), st.integers(), st.booleans(), st.lists(st.integers(), max_size=1))
VERSIONS = st.sampled_from([VERSION, "2031-01-01", "2025-11-25", ""])
VISIBLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=12)


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


STAMPS: dict[str, st.SearchStrategy[Any]] = {VERSION_KEY: st.one_of(VERSIONS, ODD), CAPABILITIES_KEY: ODD}
METAS = st.one_of(some(**STAMPS), ODD)
SAID = st.one_of(NAMES, NAMES.map(wrapped), VISIBLE, VISIBLE.map(lambda text: f"=?base64?{text}?="))


@st.composite
def routed(draw: st.DrawFn) -> tuple[HeaderLines, dict[str, Any]]:
    """Draw a request that says the same twice, and spoil it in a place or two."""
    wrong = draw(st.sets(st.sampled_from(["version", "method", "name", "body", "stamp", "twice", "gone"]), max_size=2))
    method, version, name = draw(METHODS), draw(VERSIONS), draw(NAMES)
    headers = {
        "mcp-protocol-version": draw(VERSIONS) if "version" in wrong else version,
        "mcp-method": draw(METHODS) if "method" in wrong else method,
        "mcp-name": draw(SAID) if "name" in wrong else draw(st.sampled_from([name, wrapped(name)])),
    }
    params: Any = {"_meta": {VERSION_KEY: version, CAPABILITIES_KEY: {}}, "name": name, "uri": name}
    if "stamp" in wrong:
        params["_meta"] = draw(METAS)
    if "body" in wrong:
        params = draw(st.one_of(st.none(), some(_meta=METAS), some(_meta=st.just(STAMP), name=ODD)))
    if "gone" in wrong:
        del headers[draw(st.sampled_from(sorted(headers)))]
    lines: HeaderLines = [*headers.items(), ("accept", "a"), ("accept", "b")]
    if "twice" in wrong:
        lines.append(draw(st.sampled_from(lines)))
    frame: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method}
    return lines, frame if params is None else {**frame, "params": params}


def readable(lines: HeaderLines) -> bool:
    """Tell whether the SDK can judge it: what is no ASCII inside of a wrapper makes it fail."""
    return not any(v.startswith("=?base64?") and not v.isascii() for _, v in lines)


@given(routed())
def test_requests_are_routed_as_by_the_sdk(request: tuple[HeaderLines, dict[str, Any]]) -> None:
    lines, frame = request
    if readable(lines):
        assert verdict(lines, frame) == theirs(lines, frame)


@given(st.sampled_from(["tools/call", "prompts/get", "resources/read"]), st.text(max_size=20))
def test_whatever_a_thing_is_called_its_name_can_be_repeated(method: str, name: str) -> None:
    key = "uri" if method == "resources/read" else "name"
    frame = {"method": method, "params": {key: name, "_meta": STAMP}}
    lines = [("mcp-protocol-version", VERSION), ("mcp-method", method)]
    try:
        said = inbound.encode_header_value(name)
    except UnicodeEncodeError:  # half of a surrogate pair: no header can say it
        assert verdict([*lines, ("mcp-name", "?")], frame) == (-32020, 400)
        return
    assert verdict([*lines, ("mcp-name", said)], frame) is None
    assert verdict([*lines, ("mcp-name", said + "x")], frame) == (-32020, 400)
    assert verdict(lines, frame) == (-32020, 400)


@pytest.mark.parametrize("said", ["=?base64?grüße?=", "=?base64?_w==?=", "=?base64?YR==?=", "=?base64?/w==?="])
def test_base64_around_invalid_text_is_refused(said: str) -> None:
    assert decode_header_value(said) is None
    frame = {"method": "tools/call", "params": {"name": said, "_meta": STAMP}}
    lines = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/call"), ("mcp-name", said)]
    assert verdict(lines, frame) == (-32020, 400)


@given(SAID)
@example("=?base64??=")
@example("=?base64?=")
@example("=?BASE64?YQ==?=")
def test_base64_headers_are_decoded_as_by_the_sdk(said: str) -> None:
    if said.isascii():
        assert decode_header_value(said) == inbound.decode_header_value(said)


def test_errors_have_the_http_statuses_of_the_sdk() -> None:
    assert dict(STATUSES) == dict(inbound.ERROR_CODE_HTTP_STATUS)


def test_an_unsupported_version_is_answered_with_the_supported_ones() -> None:
    frame: dict[str, Any] = {
        "method": "tools/list",
        "params": {"_meta": {VERSION_KEY: "2031-01-01", CAPABILITIES_KEY: {}}},
    }
    lines = [("mcp-protocol-version", "2031-01-01"), ("mcp-method", "tools/list")]
    found = check_headers(lines, frame, lambda _: None)
    sdk = inbound.classify_inbound_request(frame, headers=dict(lines))
    assert found is not None
    assert isinstance(sdk, inbound.InboundLadderRejection)
    assert found.data == sdk.data == {"supported": [VERSION], "requested": "2031-01-01"}
    error = json.loads(found.to_response(1))["error"]
    assert (error["code"], error["data"]) == (found.code, found.data)


@pytest.mark.parametrize(
    ("meta", "named"),
    [
        ({}, [VERSION_KEY, CAPABILITIES_KEY]),
        ({VERSION_KEY: VERSION}, [CAPABILITIES_KEY]),
        ({CAPABILITIES_KEY: {}}, [VERSION_KEY]),
        (None, [VERSION_KEY, CAPABILITIES_KEY]),
    ],
)
def test_missing_fields_of_meta_are_named(meta: Any, named: Sequence[str]) -> None:
    found = check_headers([], {"method": "tools/list", "params": {"_meta": meta}}, lambda _: None)
    assert found is not None
    assert found.code == -32602
    for key in (VERSION_KEY, CAPABILITIES_KEY):
        assert (key in found.message) == (key in named)


# -- arguments ------------------------------------------------------------------------------

TOKENS = st.sampled_from(["Region", "region", "Limit", "X-1", "a b", "", "ü", 7, None])
KINDS = st.sampled_from(["string", "integer", "boolean", "number", "object", ["string"], None])
PLAIN = st.sampled_from(["string", "integer", "boolean"])
ELSEWHERE = st.sampled_from(
    ["items", "not", "if", "anyOf", "prefixItems", "$defs", "dependentSchemas", "default", "enum"]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 50),
    st.sampled_from([2**53 + 1, 42.0, 42.5, -0.0, 1e22, 1e308, "42", "true", "", "north", "grün"]),
    st.just({"inner": 42}),
    st.just([1]),
)
HEADS = st.one_of(
    st.sampled_from(["42", "42.0", "42.50", "042", "-0", "4e1", "1e+22", "9007199254740993", "true", "True"]),
    st.sampled_from(["9" * 5_000, "north", "", wrapped("grün"), wrapped("42"), "=?base64?YR==?="]),
    st.integers(-3, 50).map(str),
)


@st.composite
def marked_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a schema with marks, most of them right, some below what is no argument."""
    tidy = draw(st.booleans())
    tokens = iter(["Region", "Limit", "X-1", "d", "e", "f", "g", "h", "i"])

    def place(depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": draw(PLAIN if tidy else KINDS)}
        if draw(st.booleans()):
            made["x-mcp-header"] = next(tokens) if tidy else draw(TOKENS)
        if depth and draw(st.booleans()):
            made["properties"] = {"inner": place(depth - 1)}
        if not tidy and depth and draw(st.booleans()):
            held = place(depth - 1)
            keyword = draw(ELSEWHERE)
            shapes: dict[str, Any] = {"anyOf": [held], "prefixItems": [held]}
            named = {"$defs", "dependentSchemas"}
            made[keyword] = {"a": held} if keyword in named else shapes.get(keyword, held)
        return made

    names = draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1))
    return {"type": "object", "properties": {name: place(1) for name in names}}


def repeated(schema: dict[str, Any], arguments: dict[str, Any]) -> HeaderLines:
    """Repeat arguments as a client of the SDK does."""
    if inbound.find_invalid_x_mcp_header(schema) is not None:
        return []
    headers = inbound.mcp_param_headers(inbound.x_mcp_header_map(schema), arguments)
    return [(name.lower(), value) for name, value in headers.items()]


CALLED = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/call"), ("mcp-name", "tool")]
ARGUMENTS = some(a=VALUES, b=VALUES, c=VALUES)


def call(arguments: Any) -> dict[str, Any]:
    params = {"name": "tool", "arguments": arguments, "_meta": STAMP}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@given(marked_schemas(), ARGUMENTS, st.data())
def test_arguments_and_their_headers_agree_as_for_the_sdk(
    schema: dict[str, Any], arguments: dict[str, Any], data: st.DataObject
) -> None:
    lines = dict(repeated(schema, arguments))
    for token in ("region", "limit", "x-1"):
        said = data.draw(st.one_of(st.just(...), st.just(...), st.none(), HEADS))
        if said is None:
            lines.pop(f"mcp-param-{token}", None)
        elif isinstance(said, str):
            lines[f"mcp-param-{token}"] = said
    request = [*CALLED, *lines.items()]
    assert verdict(request, call(arguments), schema) == theirs(request, call(arguments), schema)


@given(marked_schemas(), ARGUMENTS)
def test_headers_of_an_sdk_client_are_accepted(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert verdict([*CALLED, *repeated(schema, arguments)], call(arguments), schema) is None


@pytest.mark.parametrize(
    ("kind", "value", "said", "taken"),
    [
        ("integer", 42, "42.0", True),
        ("integer", 42.0, "42", True),
        ("integer", 42, "042", True),
        ("integer", 42, "42.5", False),
        ("integer", 42, "4.2e1", False),
        ("integer", 42, "9" * 5_000, False),
        ("integer", 2**53 + 1, "9007199254740993", True),
        ("integer", 2**53 + 1, "9007199254740992", False),
        ("integer", "42", "42.0", False),
        ("string", 42, "42.0", False),
        ("string", "42", wrapped("42"), True),
        ("boolean", True, "true", True),
        ("boolean", True, "True", False),
        ("boolean", True, "1", False),
        ("integer", True, "1", False),
        ("string", "", "", True),
        ("string", ["a"], "a", False),
        ("string", ["a"], None, True),
    ],
)
def test_integers_are_compared_as_numbers_and_other_values_as_text(
    kind: str, value: Any, said: str | None, taken: bool
) -> None:
    schema = {"properties": {"a": {"type": kind, "x-mcp-header": "A"}, "b": True}}
    lines = CALLED if said is None else [*CALLED, ("mcp-param-a", said)]
    found = verdict(lines, call({"a": value}), schema)
    assert found == theirs(lines, call({"a": value}), schema)
    assert (found is None) == taken


def test_a_schema_of_any_depth_is_walked_to_its_end() -> None:
    schema: dict[str, Any] = {"type": "string", "x-mcp-header": "Deep"}
    for _ in range(20_000):
        schema = {"properties": {"d": schema}}
    assert verdict(CALLED, call({}), schema) is None
    assert verdict([*CALLED, ("mcp-param-deep", "x")], call({}), schema) == (-32020, 400)


@pytest.mark.parametrize("arguments", [None, [], "text", 7])
def test_arguments_of_another_shape_repeat_nothing(arguments: Any) -> None:
    schema = {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}
    assert verdict(CALLED, call(arguments), schema) is None
    assert verdict([*CALLED, ("mcp-param-a", "x")], call(arguments), schema) == (-32020, 400)


@pytest.mark.parametrize("name", ["mcp-param-a", "mcp-method", "mcp-name", "mcp-protocol-version"])
def test_a_header_that_comes_twice_is_refused_even_if_it_says_the_same(name: str) -> None:
    lines = [*CALLED, ("mcp-param-a", "x"), (name, dict([*CALLED, ("mcp-param-a", "x")])[name])]
    assert verdict(lines, call({}), {}) == (-32020, 400)


def said_of(found: RequestProblem | None) -> str:
    assert found is not None
    return found.message


@pytest.mark.parametrize(
    ("value", "said", "why"),
    [
        ("north", None, "is missing"),
        ("north", "south", "does not repeat"),
        (None, "south", "has a value without"),
        ("north", "=?base64?!?=", "is invalid base64"),
    ],
)
def test_a_refusal_names_the_header_and_the_argument(value: Any, said: Any, why: str) -> None:
    place = {"type": "string", "x-mcp-header": "Region"}
    schema: Any = {"properties": {"where": {"properties": {"region": place}}}}
    lines = CALLED if said is None else [*CALLED, ("mcp-param-region", said)]
    found = check_headers(lines, call({"where": {"region": value}}), lambda _: schema)
    response = said_of(found)
    assert "mcp-param-region" in response
    assert "'where.region'" in response
    assert why in response


@pytest.mark.parametrize(
    "keywords",
    [
        {"$defs", "definitions", "dependentSchemas", "patternProperties"},
        {"allOf", "anyOf", "oneOf", "prefixItems"},
        {
            "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
            "unevaluatedItems", "unevaluatedProperties",
        },
    ],
    ids=["named", "several", "one"],
)  # fmt: skip
def test_a_mark_where_no_argument_is_certain_makes_all_marks_void(keywords: set[str]) -> None:
    marked = {"type": "string", "x-mcp-header": "B"}
    for keyword in keywords:
        held = {"x": marked} if "$defs" in keywords else [marked] if "allOf" in keywords else marked
        schema: Any = {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}, keyword: held}
        assert check_headers(CALLED, call({"a": "x"}), lambda _, schema=schema: schema) is None, keyword


# -- what it costs --------------------------------------------------------------------------

SERVED = """
import asyncio, http.client, json, sys
from indusagi.capabilities import ToolRegistry, make_local_context
from indusagi.interop import HttpSettings, create_provider_host

def ask(port):
    stamp = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
             "io.modelcontextprotocol/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": stamp}}
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    line.request("POST", "/mcp", json.dumps(body), {
        "content-type": "application/json", "accept": "application/json",
        "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"})
    answer = line.getresponse()
    assert answer.status == 200, answer.read()
    line.close()

async def main():
    box = ToolRegistry().to_tool_box(make_local_context("/"))
    async with create_provider_host(box).serve_http(HttpSettings(without_token=True)) as host:
        await asyncio.to_thread(ask, host.port)

asyncio.run(main())
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
HEAVY = {"mcp", "mcp_types", "pydantic", "httpx", "httpx2", "starlette", "jsonschema", "rich"}


@pytest.mark.process
def test_a_host_behind_http_loads_a_server_and_nothing_of_the_sdk() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED], capture_output=True, text=True, check=False, timeout=60, env=unmeasured()
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "h11" in loaded
    assert "uvicorn" not in loaded
    assert loaded & HEAVY == set()
