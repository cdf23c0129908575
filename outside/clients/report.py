"""What a client was given, and whether that is what it should have been given."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from outside.clients.server import FAILURE, NOTE, NOTED, PICTURE, STEPS, TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.json import JsonValue

TEXT = "Grüße, 世界 🌍"
"""A text to echo: it is damaged where an encoding is wrong."""
_NAMES = frozenset(f"shelf__{tool['name']}" for tool in TOOLS)
RESOURCE = f"indus://shelf/{NOTE}"
PROMPT = "shelf__find"
BOOK = "Middlemarch"
_ORDERLY = ["started", "cancelled"]
_CANCEL_S = 5.0


class NoReport(Exception):
    """A client ended without telling what it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a client was given."""

    protocol: str
    """Empty if the client does not tell."""
    tools: Sequence[str]
    echoed: str
    image: tuple[str, str]
    """Its kind and its data, in base64."""
    resource: str
    """The text of the resource."""
    prompt: str
    """The text of the message that the prompt became."""
    error: str
    """The text of a result that the client knows for a failure."""
    steps: int | None
    """How many times it was told of progress; None if it does not pass that on."""
    uncancelled: str
    """What came of a cancelled call, if anything did."""
    after: str
    """What was said again after that."""


def read_report(value: JsonValue) -> Report:
    """Take the report of a program.

    Raises:
        NoReport: It is none.
    """
    if not is_json_object(value):
        raise NoReport(f"{value!r} is no report")
    image, tools, steps = value.get("image"), value.get("tools"), value.get("steps")
    pair = [str(part) for part in image] if isinstance(image, list) else []
    return Report(
        protocol=str(value.get("protocol")),
        tools=[str(name) for name in tools] if isinstance(tools, list) else [],
        echoed=str(value.get("echoed")),
        image=("", "") if len(pair) != len(("kind", "data")) else (pair[0], pair[1]),
        resource=str(value.get("resource")),
        prompt=str(value.get("prompt")),
        error=str(value.get("error")),
        steps=steps if isinstance(steps, int) else None,
        uncancelled=str(value.get("uncancelled")),
        after=str(value.get("after")),
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what is wrong with it, or nothing."""

    what: str
    wrong: str = ""


def judge_client(report: Report, happened: Callable[[], list[str]]) -> list[Finding]:
    """Hold a report against what the server said, and against what became of its slow tool."""
    missing = sorted(_NAMES - set(report.tools))
    kind, data = report.image
    return [
        Finding("list", f"without {', '.join(missing)}" if missing else ""),
        Finding("call", _unless(report.echoed == TEXT, f"said {report.echoed!r}")),
        Finding("image", _unless((kind, data) == ("image/png", PICTURE), f"{kind} {data[:20]}")),
        Finding("resource", _unless(NOTED in report.resource, f"said {report.resource!r}")),
        Finding("prompt", _unless(report.prompt == f"Find {BOOK}.", f"said {report.prompt!r}")),
        Finding("error", _unless(FAILURE in report.error, f"said {report.error!r}")),
        Finding("progress", _unless(report.steps in (STEPS, None), f"{report.steps} steps")),
        Finding("cancel", report.uncancelled or _describe_cancel(happened)),
        Finding("after", _unless(report.after == TEXT, f"after that it said {report.after!r}")),
    ]


def _unless(right: bool, wrong: str) -> str:
    return "" if right else wrong


def _describe_cancel(happened: Callable[[], list[str]]) -> str:
    deadline = time.monotonic() + _CANCEL_S
    while (seen := happened()) != _ORDERLY and time.monotonic() < deadline:
        time.sleep(0.02)
    return _unless(seen == _ORDERLY, f"the tool was {' and '.join(seen) or 'never called'}")
