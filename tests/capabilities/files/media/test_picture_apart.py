"""A large WebP picture is unpacked in a process of its own."""

from __future__ import annotations

import io
import sys

import anyio
import pytest
from PIL import Image

from indusagi.capabilities.files.media import picture_apart, picture_worker
from indusagi.capabilities.files.media.images import EncodedImage, fit_image_sync
from indusagi.capabilities.files.media.picture_apart import fit_image
from indusagi.capabilities.files.text.display import ReadFailure

pytestmark = [pytest.mark.anyio, pytest.mark.process]


def webp(size: tuple[int, int] = (1_600, 20)) -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 90).convert("RGB").save(out, "WebP", quality=10)
    return out.getvalue()


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_apart, "LARGE_PIXELS", 30_000)


@pytest.mark.parametrize("cut", [None, -20])
async def test_a_picture_is_the_same_wherever_it_is_made(cut: int | None) -> None:
    data = webp()[:cut]
    apart = await fit_image(data, "image/webp")
    assert apart == fit_image_sync(data, "image/webp")
    assert isinstance(apart, ReadFailure if cut else EncodedImage)


@pytest.mark.parametrize(
    ("size", "mime", "here"),
    [((1_600, 20), "image/webp", False), ((1_600, 10), "image/webp", True), ((1_600, 20), "image/png", True)],
)
async def test_only_what_takes_long_in_one_call_is_not_unpacked_here(
    size: tuple[int, int], mime: str, *, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def spy(data: bytes, mime: str) -> EncodedImage | ReadFailure:
        called.append(mime)
        return fit_image_sync(data, mime)

    monkeypatch.setattr(picture_apart, "fit_image_sync", spy)
    assert isinstance(await fit_image(webp(size), mime), EncodedImage)
    assert bool(called) is here


@pytest.mark.parametrize(
    ("program", "code", "why", "kind"),
    [
        (sys.executable, "print('[1')", "ended without an answer", "failed"),
        (sys.executable, "import time; time.sleep(60)", "could not be unpacked in", "timeout"),
        ("/no/such/python", "", "cannot be started: No such file or directory", "spawn"),
    ],
)
async def test_a_process_that_gives_no_picture_is_told(
    program: str, code: str, why: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*_: str, library: str) -> list[str]:
        return [program, "-c", code]

    monkeypatch.setattr(picture_apart, "own_python", other)
    if kind == "timeout":
        monkeypatch.setattr(picture_apart, "DEADLINE_S", 0.1)
    with anyio.fail_after(20):
        found = await fit_image(webp(), "image/webp")
    assert isinstance(found, ReadFailure)
    assert (found.code, why in found.why) == (kind, True)


@pytest.mark.parametrize("data", [webp(), b"nothing"])
def test_the_process_answers_what_it_was_asked(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    question = b"".join(picture_worker.request(data, "image/webp"))
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(question), encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8"))
    assert picture_worker.main() == 0
    assert picture_worker.answer([out.getvalue()]) == fit_image_sync(data, "image/webp")
