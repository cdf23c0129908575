"""Names of many tools: a list of them is built in one pass."""

from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from indusagi.runtime.contract import ToolDescriptor
from induscode.boot.catalog import ListedTool
from induscode.gateway import dry_run
from induscode.gateway.gateway import GatewayBox

if TYPE_CHECKING:
    from collections.abc import ItemsView

    import pytest

NUMBERS = range(50)


class CountedNames(UserDict[str, str]):
    """The names, and how often all of them were read."""

    reads = 0

    def items(self) -> ItemsView[str, str]:
        self.reads += 1
        return super().items()


def test_a_gateway_reads_plain_names_once_for_a_whole_list() -> None:
    names = CountedNames({f"t{number}": f"s__t{number}" for number in NUMBERS})
    tools = [ToolDescriptor(name, "", {}) for name in names.values()]
    gateway: Any = SimpleNamespace(listed=SimpleNamespace(set=lambda: None), waits_for_sign_in=lambda: False)
    native: Any = SimpleNamespace(descriptors=lambda: ())
    remote: Any = SimpleNamespace(descriptors=lambda: tools)
    box = GatewayBox(native, remote, gateway, dict.fromkeys(names.values(), "s"), "raw", names)
    assert [tool.name for tool in box.descriptors()] == [*names]
    assert names.reads == 1


def test_a_dry_run_chooses_names_once_for_a_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    choose = dry_run.choose_plain_names

    def count(*given: Any) -> dict[str, str]:
        chosen.append(given)
        return choose(*given)

    monkeypatch.setattr(dry_run, "choose_plain_names", count)
    tools = [ListedTool(ToolDescriptor(f"s__t{number}", "", {}), "s", tool=f"t{number}") for number in NUMBERS]
    named = dry_run.name_tools(tools, is_plain=True)
    assert [*named] == [f"t{number}" for number in NUMBERS]
    assert len(chosen) == 1


def test_a_remote_tool_keeps_its_prefix_beside_a_native_one_of_its_name() -> None:
    native = ListedTool(ToolDescriptor("ls", "", {}), dry_run.NATIVE)
    remote = [ListedTool(ToolDescriptor(f"s__{name}", "", {}), "s", tool=name) for name in ("ls", "look")]
    assert [*dry_run.name_tools([native, *remote], is_plain=True)] == ["ls", "s__ls", "look"]
    assert [*dry_run.name_tools([native, *remote])] == ["ls", "s__ls", "s__look"]
