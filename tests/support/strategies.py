"""Values to try a law on, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue


def examples(times: float) -> settings:
    """Try a law on so many times the examples of the profile in use (see `tests/conftest.py`)."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return settings(max_examples=max(1, round(profile.max_examples * times)))


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()

json_values: st.SearchStrategy[JsonValue] = st.recursive(
    _scalars,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4),
    max_leaves=20,
)

UNSEEN = (
    "\u200b\u200c\u200d\u200e\u202e\u2066\u2060\ufeff\u00ad\u034f\u180e\u3164\ufe0f\ufff0\ufdd0"
    "\U000e0041\U000e0101\U0001d173\U0010ffff\x00\x1b\x9b\x07\u2028\ud800\udc00"
)
"""One of every kind of character that cannot be seen."""
hidden_text = st.text(st.sampled_from(f"ab1{UNSEEN}\u0645\u8fbb\U0001f600"), max_size=5) | st.sampled_from(
    [f"a{unseen}b" for unseen in UNSEEN]
)
"""Texts in which such characters stand beside those that some of them belong to."""
hidden_json: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.integers() | hidden_text,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(hidden_text, children, max_size=4),
    max_leaves=15,
)
