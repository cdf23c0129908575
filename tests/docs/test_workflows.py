"""The workflow files are valid YAML without a repeated key, and run targets that exist."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


class UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a mapping with a repeated key, as GitHub does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"repeated key: {keys}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_valid(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    workflow = yaml.load(text, UniqueKeyLoader)
    assert all(job["steps"] and job["timeout-minutes"] for job in workflow["jobs"].values())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= targets
