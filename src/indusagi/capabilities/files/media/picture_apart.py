"""Pictures, made small where that holds nobody up: most in a thread, large WebP files apart.

What unpacks WebP does so in one call, which lets nobody else run until it is done; what unpacks
other kinds lets go of the interpreter.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.media import picture_worker
from indusagi.capabilities.files.media.images import fit_image_sync, read_image_size
from indusagi.capabilities.files.media.picture_worker import answer, request
from indusagi.capabilities.files.text.display import ReadFailure
from indusagi.capabilities.worker.client import asked
from indusagi.capabilities.worker.interpreter import library_of, own_python

if TYPE_CHECKING:
    from indusagi.capabilities.files.media.images import EncodedImage

LARGE_PIXELS = 2_000_000
"""Up to this the call takes a hundredth of a second or two."""
DEADLINE_S = 30.0


async def fit_image(data: bytes, mime: str) -> EncodedImage | ReadFailure:
    """Make a picture small enough for a model, or say why that cannot be."""
    size = read_image_size(data) if mime == "image/webp" else None
    if size is None or math.prod(size) <= LARGE_PIXELS:
        return await to_thread.run_sync(fit_image_sync, data, mime, abandon_on_cancel=True)
    library = await to_thread.run_sync(library_of, "PIL")
    argv = own_python(picture_worker.__name__, library=library)
    try:
        pieces = await asked(argv, request(data, mime), DEADLINE_S)
    except TimeoutError:
        return ReadFailure(f"it could not be unpacked in {DEADLINE_S:.0f} seconds", "timeout")
    except OSError as exc:
        why = f"the process that unpacks it cannot be started: {exc.strerror or exc}"
        return ReadFailure(why, "spawn")
    return answer(pieces)
