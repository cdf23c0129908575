"""What goes between us and a process of our own: a few facts as JSON, and large parts as they are.

Large parts are neither copied nor escaped: that would be the work which the process is there for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject

_SIZE = 8
"""Bytes in front that tell how long the facts are."""


def packed(facts: JsonObject, parts: Sequence[bytes]) -> list[bytes]:
    """Give the pieces of a message, to be written one after the other."""
    head = json.dumps([facts, [len(part) for part in parts]]).encode("ascii")
    return [len(head).to_bytes(_SIZE, "big"), head, *parts]


def unpacked(data: bytes) -> tuple[JsonObject, list[bytes]]:
    """Read a message.

    Raises:
        ValueError: It is no message, or not all of it.
    """
    try:
        return _read(data)
    except (TypeError, RecursionError):  # whatever is there, we have not written it
        raise ValueError("no message of ours") from None


def _read(data: bytes) -> tuple[JsonObject, list[bytes]]:
    at = _SIZE + int.from_bytes(data[:_SIZE], "big")
    facts, sizes = cast("tuple[JsonObject, list[int]]", json.loads(data[_SIZE:at]))
    parts: list[bytes] = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"{len(data)} bytes of {at}")
    return facts, parts
