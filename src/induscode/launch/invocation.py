"""What was asked for on the command line: one value, whatever the spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from induscode.launch.flags import FlagKind, flag_specs, split_list

if TYPE_CHECKING:
    from collections.abc import Mapping

OutputFormat: TypeAlias = Literal["text", "json", "stream-json"]
Approval: TypeAlias = Literal["ask", "auto-edit", "all"]
SandboxMode: TypeAlias = Literal["auto", "required", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One run of the program."""

    cwd: str
    prompt: str | None = None
    output_format: OutputFormat = "text"
    continue_last: bool = False
    resume: str | None = None
    model: str | None = None
    base_url: str | None = None
    max_requests: int = 50
    tools: tuple[str, ...] | None = None
    """None: all of them."""
    no_tools: bool = False
    mcp: tuple[str, ...] | None = None
    """None: what is configured for the working directory."""
    no_mcp: bool = False
    allow: tuple[str, ...] = ()
    approval: Approval = "ask"
    sandbox: SandboxMode = "auto"


def invocation_of(values: Mapping[str, object], cwd: str) -> Invocation:
    """Make the value from what a parser read for the flags of the table.

    Raises:
        ValueError: A number is none, or two flags contradict each other.
    """
    read = {spec.key: values.get(spec.key) for spec in flag_specs()}
    for spec in flag_specs():
        if spec.kind is FlagKind.LIST:
            words = cast("tuple[str, ...]", read[spec.key] or ())
            read[spec.key] = split_list(words) or None
            if words and read[spec.key] is None:
                raise ValueError(f"{spec.name} names nothing")
    _refuse_contradictions(read)
    return Invocation(
        cwd=cwd,
        prompt=cast("str | None", read["print"]),
        output_format=cast("OutputFormat", read["output_format"] or "text"),
        continue_last=bool(read["continue"]),
        resume=cast("str | None", read["resume"]),
        model=cast("str | None", read["model"]),
        base_url=cast("str | None", read["base_url"]),
        max_requests=_number("--max-requests", read["max_requests"], 50),
        tools=cast("tuple[str, ...] | None", read["tools"]),
        no_tools=bool(read["no_tools"]),
        mcp=cast("tuple[str, ...] | None", read["mcp"]),
        no_mcp=bool(read["no_mcp"]),
        allow=cast("tuple[str, ...]", read["allow"] or ()),
        approval=cast("Approval", read["approval"] or "ask"),
        sandbox=cast("SandboxMode", read["sandbox"] or "auto"),
    )


def _refuse_contradictions(read: Mapping[str, object]) -> None:
    """Refuse two flags of which one would be ignored.

    Raises:
        ValueError: There are two such flags.
    """
    given = {
        spec.name for spec in flag_specs() if read[spec.key] not in (None, False, (), spec.default)
    }
    for spec in flag_specs():
        for other in spec.excludes:
            if spec.name in given and other in given:
                raise ValueError(f"{other} and {spec.name} exclude each other")


def _number(flag: str, given: object, default: int) -> int:
    if given is None:
        return default
    text = str(given)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{flag} takes a number from 1 on, not {text!r}")
    return int(text)
