"""`@record`: values that compare, hash and print as frozen dataclasses do."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import pytest

from indusagi.core.records import record


@record
class Point:
    x: int
    y: int = 0
    names: tuple[str, ...] = field(default=(), compare=False)


@record(kw_only=True)
class Named(Point):
    name: str
    hidden: str = field(default="", repr=False)


@record
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class Standard:
    x: int
    y: int = 0


def test_records_compare_and_hash_by_their_fields() -> None:
    assert Point(1) == Point(1, 0, ("ignored",))
    assert Point(1) != Point(2)
    assert Point(1) != (1, 0)
    assert Point(1) != Standard(1)
    assert len({Point(1), Point(1), Point(2)}) == 2
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())


def test_subclass_is_another_value() -> None:
    named = Named(1, name="a")
    assert named != Point(1)
    assert named == Named(x=1, name="a")
    assert [one.name for one in fields(named)] == ["x", "y", "names", "name", "hidden"]


def test_record_prints_as_a_dataclass_does() -> None:
    assert repr(Point(1, 2)) == "Point(x=1, y=2, names=())"
    assert repr(Point(1, 2)).startswith(repr(Standard(1, 2)).replace("Standard", "Point")[:-1])
    assert repr(Named(1, name="a", hidden="b")) == "Named(x=1, y=0, names=(), name='a')"


def test_replace_gives_a_changed_copy() -> None:
    point = Point(1, 2)
    assert replace(point, x=3) == Point(3, 2)
    assert point == Point(1, 2)


def test_record_has_slots_and_checks_its_arguments() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 1  # type: ignore[attr-defined] — what is tested
    with pytest.raises(TypeError):
        Named(1, "a")  # type: ignore[call-arg] — what is tested


def test_own_methods_are_kept() -> None:
    @record
    class Loud:
        x: int

        def __repr__(self) -> str:
            return "loud"

        def __eq__(self, other: object) -> bool:
            return True

    assert repr(Loud(1)) == "loud"
    assert Loud(1) == Loud(2)
    assert hash(Loud(1)) == hash(Loud(1))
