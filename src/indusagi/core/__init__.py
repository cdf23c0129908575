"""Leaf utilities that every layer shares: JSON, hashing, ids, time, cancellation, faults, notes."""

from indusagi.core.cancel import CancelToken as CancelToken
from indusagi.core.faults import CoreError as CoreError
from indusagi.core.faults import Note as Note
from indusagi.core.ids import new_ulid as new_ulid
from indusagi.core.json import JsonLike as JsonLike
from indusagi.core.json import JsonObject as JsonObject
from indusagi.core.json import JsonValue as JsonValue
from indusagi.core.json import NotJson as NotJson
from indusagi.core.json import compact_json as compact_json
from indusagi.core.json import content_hash as content_hash
from indusagi.core.time import iso_utc as iso_utc
from indusagi.core.time import now_ms as now_ms

__all__ = [
    "CancelToken",
    "iso_utc",
    "now_ms",
    "CoreError",
    "content_hash",
    "new_ulid",
    "JsonLike",
    "JsonObject",
    "JsonValue",
    "NotJson",
    "compact_json",
    "Note",
]
