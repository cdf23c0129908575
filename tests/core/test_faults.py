from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import indusagi
import induscode
from indusagi.core import faults
from indusagi.core.faults import CoreError


def tree(error: type[CoreError]) -> set[str]:
    return {error.__name__}.union(*(tree(child) for child in error.__subclasses__()))


@pytest.mark.timeout(120)  # everything there is is loaded, on a machine that may be busy
def test_the_drawing_of_the_error_tree_shows_every_error_there_is() -> None:
    for package in (indusagi, induscode):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    drawn = set(re.findall(r"^[├└─│ ]*(\w+)  ", faults.__doc__ or "", re.MULTILINE))
    assert drawn == tree(CoreError)
