"""One short, stable digest for any JSON value."""

from __future__ import annotations

import hashlib

from indusagi.core.json import JsonLike, compact_json

DIGEST_LENGTH = 32
"""Hexadecimal digits kept of the sha256: 128 bits, short enough for a log line."""


def content_hash(value: JsonLike, *, sort_keys: bool = False) -> str:
    """Hash the compact JSON of `value`: the same value, the same 32 hexadecimal digits.

    The order of keys counts, unless `sort_keys` says that it does not.

    Raises:
        NotJson: `value` holds something that JSON cannot carry.
    """
    text = compact_json(value, sort_keys=sort_keys)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:DIGEST_LENGTH]
