"""The process that makes a picture small, and what goes between it and us: a picture each way."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from indusagi.capabilities.files.media.images import EncodedImage, fit_image_sync
from indusagi.capabilities.files.text.display import ReadFailure
from indusagi.capabilities.worker.message import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence


def request(data: bytes, mime: str) -> list[bytes]:
    """Write what the process is to do."""
    return packed({"mime": mime}, [data])


def answer(pieces: Sequence[bytes]) -> EncodedImage | ReadFailure:
    """Read what the process has written."""
    try:
        given, parts = unpacked(b"".join(pieces))
    except ValueError:
        return ReadFailure("the process that unpacks it ended without an answer", "failed")
    facts: dict[str, Any] = {**given}
    if not parts:
        return ReadFailure(**facts)
    former = tuple(facts.pop("former"))
    return EncodedImage(parts[0], **facts, former=former)


def _reply(found: EncodedImage | ReadFailure) -> list[bytes]:
    if isinstance(found, ReadFailure):
        return packed({"why": found.why, "code": found.code}, [])
    facts = {"mime": found.mime, "width": found.width, "height": found.height}
    return packed({**facts, "former": [*found.former]}, [found.data])


def main() -> int:
    """Answer the one request on standard input: what the process is for."""
    given, (data,) = unpacked(sys.stdin.buffer.read())
    for piece in _reply(fit_image_sync(data, str(given["mime"]))):
        sys.stdout.buffer.write(piece)
    return 0
