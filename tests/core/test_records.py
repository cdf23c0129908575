"""`@record`: values that compare, hash and print as frozen dataclasses do."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

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


@record
class Counted:
    x: int
    twice: int = field(init=False)
    seen: list[int] = field(default_factory=list[int])
    fixed: int = field(default=7, init=False)
    made: list[int] = field(default_factory=lambda: [1], init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.x)


@record
class Written:
    x: int

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "x", int(text))


def test_finding_sa_records_cannot_be_assigned_to() -> None:
    point = Named(1, name="a")
    for name in ("x", "name"):
        with pytest.raises(FrozenInstanceError, match=f"Named.{name} can't be changed: use dataclasses.replace"):
            setattr(point, name, 5)
        with pytest.raises(FrozenInstanceError):
            delattr(point, name)
    assert point == Named(1, name="a")


def test_fields_outside_of_init_are_filled() -> None:
    one, other = Counted(2), Counted(2, [3])
    assert (one.twice, one.seen, one.fixed, one.made) == (4, [], 7, [1])
    assert other.seen == [3]
    assert one.made is not other.made
    with pytest.raises(TypeError):
        Counted(1, [], 8)  # type: ignore[call-arg] — what is tested


def test_own_init_is_kept() -> None:
    assert Written("3").x == 3


def test_copies_and_pickles_are_equal() -> None:
    point = Named(1, 2, ("n",), name="a")
    for copied in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):  # noqa: S301 — our own
        assert copied == point
        assert copied.names == ("n",)


def test_signature_and_messages_name_the_class_and_its_fields() -> None:
    assert list(inspect.signature(Named).parameters) == ["x", "y", "names", "name", "hidden"]
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required"):
        Point()  # type: ignore[call-arg] — what is tested
