"""Pages that are kept for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.web.fetch import PageCache


def test_a_page_is_found_until_its_time_is_over() -> None:
    cache: PageCache[str] = PageCache()
    cache.put("a", "page", 10, until=100.0, limit=50)
    assert cache.get("a", 99.9) == "page"
    assert cache.get("a", 100.0) is None
    assert cache.size == 0
    assert cache.get("a", 99.9) is None


def test_the_page_that_was_used_longest_ago_goes_first() -> None:
    cache: PageCache[str] = PageCache()
    for key in ("a", "b"):
        cache.put(key, key, 20, until=9.0, limit=50)
    cache.get("a", 0.0)
    cache.put("c", "c", 20, until=9.0, limit=50)
    assert [cache.get(key, 0.0) for key in ("a", "b", "c")] == ["a", None, "c"]


def test_a_page_that_is_too_large_is_not_kept_and_takes_the_old_one_along() -> None:
    cache: PageCache[str] = PageCache()
    cache.put("a", "old", 10, until=9.0, limit=50)
    cache.put("a", "new", 51, until=9.0, limit=50)
    assert cache.get("a", 0.0) is None
    assert cache.size == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60))))
def test_no_more_is_held_than_may_be(puts: list[tuple[int, int]]) -> None:
    cache: PageCache[int] = PageCache()
    for key, size in puts:
        cache.put(key, size, size, until=1.0, limit=50)
        assert cache.size <= 50
    held = [page for key in range(6) if (page := cache.get(key, 0.0)) is not None]
    assert sum(held) == cache.size
