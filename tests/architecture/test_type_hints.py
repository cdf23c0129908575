"""Annotations of public names resolve at run time, and aliases are types rather than text."""

from __future__ import annotations

import importlib
import inspect
import typing
from typing import TYPE_CHECKING

import pytest
from tests.architecture.test_exports import NAMES as EXPORTS
from tests.architecture.test_seed_names import NAMES as PLACES

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = sorted({*EXPORTS, *PLACES})
CONSTANTS = {"CLIENT_NAME", "CLIENT_VERSION", "PLANS_DIRNAME", "QUALIFIER"}
"""The only names that are meant to be text."""


def exported(module: str) -> dict[str, object]:
    found = importlib.import_module(module)
    names = {*EXPORTS.get(module, "").split(), *PLACES.get(module, "").split()}
    return {name: getattr(found, name) for name in sorted(names)}


def annotated(value: object) -> Iterator[object]:
    """Give whatever of an exported value carries annotations: itself, and a class's methods."""
    if inspect.isfunction(value):
        yield value
    if not inspect.isclass(value) or not value.__module__.startswith("indus"):
        return
    yield value
    for member in vars(value).values():
        inner = member.fget if isinstance(member, property) else member
        inner = getattr(inner, "__func__", inner)  # a class method or a static one
        if inspect.isfunction(inner) and inner.__module__.startswith("indus"):
            yield inner


@pytest.mark.parametrize("module", PUBLIC)
def test_finding_1a10_the_hints_of_every_exported_name_resolve(module: str) -> None:
    unresolved: list[str] = []
    for name, value in exported(module).items():
        for part in annotated(value):
            try:
                typing.get_type_hints(part)
            except (NameError, TypeError) as exc:
                unresolved.append(f"{name}: {getattr(part, '__qualname__', part)}: {exc}")
    assert unresolved == []


@pytest.mark.parametrize("module", PUBLIC)
def test_finding_1a10_an_exported_alias_is_a_type_and_not_text(module: str) -> None:
    texts = [name for name, value in exported(module).items() if isinstance(value, str)]
    assert set(texts) <= CONSTANTS


@pytest.mark.parametrize(
    "place",
    [
        "indusagi.interop.ServerConfig",
        "indusagi.interop.FleetStatus",
        "indusagi.interop.InjectedTransport",
        "indusagi.interop.FaultKind",
        "indusagi.core.JsonValue",
        "indusagi.core.JsonLike",
        "indusagi.runtime.JsonSchema",
        "indusagi.runtime.ProgressSink",
        "induscode.deck.contract.BuildFn",
        "induscode.deck.builtin.BridgeBuilder",
    ],
)
def test_finding_1a10_an_alias_can_be_made_optional_by_its_user(place: str) -> None:
    module, _, name = place.rpartition(".")
    alias = getattr(importlib.import_module(module), name)

    def use(value: object) -> None: ...

    use.__annotations__["value"] = alias | None
    hint = typing.get_type_hints(use)["value"]
    assert type(None) in typing.get_args(hint)
