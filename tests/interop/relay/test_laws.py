"""What must hold for every message that passes a relay."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.relays import ordered
from tests.support.transports import FakeTransport, settled

from indusagi.core.text import clean_json
from indusagi.interop import StdioServerConfig, linked_pair
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits
from indusagi.interop.protocol_bridge.relay import RelaySession
from indusagi.interop.protocol_bridge.relay.upstream import ReconnectBackoff, ToolSchemas, UpstreamPool
from indusagi.interop.protocol_bridge.rpc.transport import (
    EncodedObject,
    EncodeError,
    decode_frame,
    decode_frame_verbatim,
    encode_frame,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

TEXT = st.text(st.characters(codec="utf-8") | st.characters(categories=["Cs"]), max_size=8)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
_HALF = re.compile("[\ud800-\udfff]")
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)
STYLES: Any = st.sampled_from(
    [{}, {"ensure_ascii": False, "separators": (",", ":")}, {"indent": 2}, {"separators": (" ,\t", " :\r ")}]
)
ODD = [
    "1.0",
    "-0.0",
    "1e400",
    "0.10000000000000000001",
    "123456789012345678901234567890",
    '"\\u00e9\\ud800\\/"',
    "[ 1 , {} ]",
]


def written(value: Any, style: Any) -> bytes:
    return json.dumps(value, **style).encode("utf-8", "backslashreplace")


@given(OBJECTS, STYLES, st.sampled_from(["result", "params", "error"]))
def test_a_frame_that_is_read_and_written_is_the_same(value: Any, style: Any, key: str) -> None:
    frame = {"jsonrpc": "2.0", "id": 1, "more": [value], key: value}
    text = written(frame, style)
    read = decode_frame_verbatim(text)
    assert read == frame
    # Those who read it for themselves get no half of a surrogate pair; a relay hands on all.
    assert decode_frame(text) == clean_json(frame, lambda one: _HALF.subn("\ufffd", one))[0]
    assert isinstance(read, dict)
    again = encode_frame(read)
    assert b"\n" not in again
    assert b"\r" not in again
    assert ordered(again) == ordered(text)
    assert type(read[key]) is EncodedObject


@pytest.mark.parametrize("odd", ODD)
def test_params_and_results_keep_their_exact_bytes(odd: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"result":{{"x":{odd}}}}}'.encode()
    read = decode_frame_verbatim(text)
    assert isinstance(read, dict)
    assert encode_frame(read) == text
    assert encode_frame({**read, "id": "other"}).endswith(b'"result":{"x":%b}}' % odd.encode())


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":1e999,"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"result":[-1e999]}',
        b'{"jsonrpc":"2.0","id":1,"result":1e999}',
        b'{"jsonrpc":"2.0","method":"a","more":{"x":[1e999]}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1e999}}]',
    ],
)
def test_a_number_that_cannot_be_written_again_is_refused_where_it_would_have_to_be(text: bytes) -> None:
    read = decode_frame(text)
    with pytest.raises(EncodeError):
        decode_frame_verbatim(text)
    with pytest.raises(EncodeError):
        encode_frame(read[0] if isinstance(read, list) else read)  # type: ignore[arg-type]


@given(st.binary(max_size=40) | st.text('{}[]":,1ae \t\r\n\\', max_size=20).map(str.encode))
def test_both_decoders_refuse_the_same_input(text: bytes) -> None:
    try:
        expected: Any = decode_frame(text)
    except (ValueError, RecursionError):
        with pytest.raises((ValueError, RecursionError)):
            decode_frame_verbatim(text)
    else:
        assert decode_frame_verbatim(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1',
        b'{"a" 1}',
        b'{"a":1 "b":2}',
        b'{"a":1,}',
        b'{"a":1}}',
        b"{1:2}",
        b"{,}",
        b"{",
        b'{"a":NaN}',
        b'{"a":' + b"[" * 100_000,
        b"",
    ],
)
def test_invalid_json_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_frame_verbatim(text)


@given(params=OBJECTS, result=OBJECTS, style=STYLES)
async def test_any_request_and_any_result_pass_equal_and_in_order(params: Any, result: Any, style: Any) -> None:
    """Through the whole of a relay, with the links in memory."""
    ours, theirs = linked_pair()
    heard: list[Any] = []
    ours.attach(heard.append, lambda end: None)
    link = FakeTransport()
    pool = UpstreamPool(StdioServerConfig("behind", "none"), 1)
    client = RelaySession(pool, ReconnectBackoff(), HostLimits(), ToolSchemas())
    client._forwarder.connection = _Connection(client, link)  # type: ignore[assignment] — a connection without a process
    client.notification_channel = theirs
    asked = {"jsonrpc": "2.0", "id": "a", "method": "x/y", "params": params}
    client.dispatcher.receive(written(asked, style), theirs)
    link.say(written({"result": result, "id": "a", "jsonrpc": "2.0"}, style))
    await settled()
    [sent], [answer] = link.sent, heard
    assert ordered(encode_frame(sent)) == ordered(json.dumps(asked).encode())
    expected = {"jsonrpc": "2.0", "id": "a", "result": result}
    assert ordered(encode_frame(answer)) == ordered(json.dumps(expected).encode())
    client._forwarder.connection = None
    await client.close("done")


class _Connection:
    """The part of an upstream connection that a session uses, over a link in memory."""

    is_writable = True

    def __init__(self, client: RelaySession, link: FakeTransport) -> None:
        self._link = link
        link.attach(lambda data: client._receive(decode_frame_verbatim(data)), lambda end: None)  # type: ignore[arg-type]

    def send(self, frame: JsonObject) -> bool:
        self._link.send(frame)
        return True
