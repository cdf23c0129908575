"""Adapters of libraries that are not installed name the package; the package itself needs none of them."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.parametrize(
    ("module", "library", "package"),
    [("langchain", "langchain_core", "langchain-core"), ("openai_agents", "agents", "openai-agents")],
)
def test_a_missing_library_is_named(module: str, library: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(library) is not None:
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"indusagi.adapters.{module}", raising=False)
    with pytest.raises(ImportError, match=f"pip install {package}"):
        importlib.import_module(f"indusagi.adapters.{module}")
