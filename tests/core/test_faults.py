from __future__ import annotations

import builtins
import importlib
import pkgutil
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import indusagi
import induscode
from indusagi.core import faults
from indusagi.core.faults import CoreError, Note, describe_error


def tree(error: type[CoreError]) -> set[str]:
    return {error.__name__}.union(*(tree(child) for child in error.__subclasses__()))


@pytest.mark.timeout(120)  # everything there is is loaded, on a machine that may be busy
def test_drawing_of_the_error_tree_shows_every_error() -> None:
    for package in (indusagi, induscode):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # Two adapters need libraries that are not installed here.
            if not module.name.endswith(("__main__", ".adapters.langchain", ".adapters.openai_agents")):
                importlib.import_module(module.name)
    drawn = set(re.findall(r"^[├└─│ ]*(\w+)  ", faults.__doc__ or "", re.MULTILINE))
    assert drawn == tree(CoreError)


def fits(kind: type) -> bool:
    """Tell whether an exception of this class can be made without a word."""
    if not issubclass(kind, Exception):
        return False
    try:
        return str(kind()) == ""
    except TypeError:
        return False


@given(st.sampled_from([kind for kind in vars(builtins).values() if isinstance(kind, type) and fits(kind)]))
def test_finding_1a11_every_exception_without_words_is_described(kind: type[Exception]) -> None:
    assert kind.__name__ in describe_error(kind())


def test_exception_without_message_is_described_by_its_cause() -> None:
    error = RuntimeError()
    error.__cause__ = middle = ValueError()
    middle.__cause__ = OSError("disk full")
    assert describe_error(error) == "RuntimeError: disk full"
    middle.__cause__ = error  # a chain may lead back to itself
    assert describe_error(error) == "RuntimeError"


def test_errors_of_a_group_are_described_once_each() -> None:
    group = ExceptionGroup("g", [OSError("a"), OSError("a"), ExceptionGroup("h", [EOFError()])])
    assert describe_error(group) == "a; the data ended early (EOFError)"


def test_note_is_one_line_with_its_remedy() -> None:
    assert str(Note("tool 'a'", "registered twice", "rename one")) == ("tool 'a': registered twice (rename one)")


def test_note_without_a_remedy_has_no_parentheses() -> None:
    assert str(Note("server 'x'", "skipped")) == "server 'x': skipped"
