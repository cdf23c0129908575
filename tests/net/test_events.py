"""Event streams, cut anywhere: the same events as the HTTP library's own parser finds."""

from __future__ import annotations

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.net.client import EventParser, EventTooLargeError

LINES = [
    b"data: a", b"data:b", b"data:  c", b"data", b"data:", b"datax: no", b"id: 7", b"id:", b"id: a\0b",
    b"retry: 20", b"retry: x", b"event: ping", b"event:", b": comment", b"other: x",
    "data: é\u2028".encode(), b"data: \xff", b" data: no",
]  # fmt: skip


def parse(*pieces: bytes, limit: int = 10_000) -> list[tuple[str, str]]:
    parser = EventParser(limit)
    found = [event for piece in pieces for event in parser.feed(piece)]
    return [(event.name, event.data.decode("utf-8", "replace")) for event in found]


def parse_with_httpx(stream: bytes) -> list[tuple[str, str]]:
    request, headers = httpx2.Request("GET", "http://host/"), {"content-type": "text/event-stream"}
    response = httpx2.Response(200, headers=headers, content=stream, request=request)
    return [(event.event, event.data) for event in httpx2.EventSource(response) if event.data]


@given(st.data())
def test_events_are_those_of_another_parser_wherever_the_stream_is_cut(data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    blocks = data.draw(st.lists(st.lists(st.sampled_from(LINES), max_size=4), max_size=4))
    stream = b"".join(b"".join(line + end for line in block) + end for block in blocks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    found = [event for event in parse(*pieces) if event[1]]
    assert found == parse_with_httpx(stream)


@pytest.mark.parametrize("second", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("first", [b"\n", b"\r", b"\r\n"])
def test_finding_f16_a_blank_line_of_any_kind_ends_an_event(first: bytes, second: bytes) -> None:
    if (first, second) == (b"\r", b"\n"):  # together one line end
        second = b"\r\n"
    whole = (b"data: 1234567" + first + second) * 5
    for pieces in ((whole,), tuple(whole[at : at + 1] for at in range(len(whole)))):
        assert parse(*pieces, limit=20) == [("message", "1234567")] * 5


def test_the_limit_is_that_of_one_event() -> None:
    assert len(parse(b"data: 12345678\n\n" * 9, limit=16)) == 9
    for pieces in ((b"data: 123456789\n\n",), (b"data: 1", b"2345678", b"90")):
        with pytest.raises(EventTooLargeError):
            parse(*pieces, limit=15)


def test_the_last_id_and_the_pause_outlive_an_event_that_was_cut_off() -> None:
    parser = EventParser(100)
    assert [*parser.feed(b"\xef\xbb\xbfid: 7\nretry: 1500\n\ndata: cut")] == []
    parser.reset()
    assert [event.data for event in parser.feed(b"data: next\n\n")] == [b"next"]
    assert (parser.last_id, parser.retry_s) == ("7", 1.5)
    assert [*parser.feed(b"id\nretry: -1\n\n")] == []
    assert (parser.last_id, parser.retry_s) == (None, 1.5)
