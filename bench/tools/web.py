"""The scoreboard's probes of webfetch: where it must not go, and pages that take for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.support.ssrf import LOCATIONS, URLS

from bench.row import CannotMeasure
from bench.tools.board import Finding, Item, seconds
from bench.tools.subject import OURS, alone

if TYPE_CHECKING:
    from bench.tools.board import Scene
    from indusagi.core.json import JsonObject

_HOSTILE_S = 2.0
_FORMS_S = 90.0


def probe_addresses(scene: Scene) -> Finding:
    """Fetch URLs that lead to a forbidden server, and count the requests that reach it."""
    if scene.subject is not OURS and alone() is None:
        raise CannotMeasure("a network of its own cannot be made here, and it is not let into ours")
    with scene.driver(listen=True) as driver:
        direct = [form.replace("{port}", str(driver.secret)) for form in URLS]
        behind = [form.replace("{port}", str(driver.secret)) for form in LOCATIONS]
        entry = f"http://127.0.0.1:{driver.entry}/to?url="
        urls = [*direct, *(entry + quote(form, safe="") for form in behind)]
        calls: list[tuple[str, JsonObject]] = [("webfetch", {"url": url}) for url in urls]
        answers = driver.calls(calls, watch=False, limit_s=_FORMS_S).answers
    reached = sum(answer is not None and answer.reached > 0 for answer in answers)
    answered = sum(answer is not None and not answer.error for answer in answers[: len(direct)])
    missing = sum(answer is None for answer in answers)
    text = f"{reached} of {len(urls)} reached it"
    if missing:
        text += f", {missing} not tried in {_FORMS_S:g} s"
    ok = reached == answered == missing == 0
    return Finding(ok, text, {"reached": reached, "forms": len(urls), "answered": answered})


def hostile(scene: Scene) -> Finding:
    """Fetch a page of links that are never closed."""
    count = scene.sizes.anchors
    path = scene.folder / "page.html"
    path.write_text("<html><body>" + "<a href='x'>" * count, encoding="utf-8")
    took: list[float] = []
    late: list[float] = []
    for _ in range(scene.tries):
        with scene.driver(listen=True) as driver:
            url = f"http://127.0.0.1:{driver.entry}/file?path={quote(str(path))}"
            answer = driver.call("webfetch", {"url": url}, scene.sizes.patience_s)
            if answer.error:
                return Finding(ok=False, text="an error")
            took.append(answer.seconds)
            late.append(answer.late_s)
    text = f"{seconds(min(took))}, the event loop blocked for {seconds(min(late))}"
    figures = {"seconds": min(took), "late_seconds": min(late)}
    return Finding(min(took) < _HOSTILE_S and min(late) < 0.05, text, figures)


ITEMS = (
    Item("web-guard", "private addresses, in every notation and by redirect", "0", probe_addresses),
    Item("web-hostile", "a page of 2,000 links that are never closed", "< 2 s, 50 ms", hostile),
)
