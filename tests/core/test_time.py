from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from indusagi.core.time import iso_utc, now_ms


def test_time_is_formatted_in_utc_with_milliseconds() -> None:
    assert iso_utc(0) == "1970-01-01T00:00:00.000Z"
    assert iso_utc(1_794_773_309_007) == "2026-11-15T20:08:29.007Z"


@given(st.integers(-62_000_000_000_000, 253_000_000_000_000))
def test_formatted_time_parses_to_the_same_time(at_ms: int) -> None:
    moment = datetime.fromisoformat(iso_utc(at_ms))
    assert (moment - datetime(1970, 1, 1, tzinfo=UTC)) == timedelta(milliseconds=at_ms)


def test_present_time_is_formatted_by_default() -> None:
    before = iso_utc(now_ms())
    assert before <= iso_utc() <= iso_utc(now_ms())
