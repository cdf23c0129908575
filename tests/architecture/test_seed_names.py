"""Every name of the specification's tables, in the module it is documented under."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

NAMES = {
    "induscode.deck": """
        Capability CapabilityCard CapabilityId Card DeckContext DeckFault DeckFramework DeckResult
        Profile capability_id
    """,
    "induscode.deck.contract": """
        Capability Card CapabilityId capability_id BuildFn CapabilityCard Profile DeckContext
        DeckFramework CheckpointStore DelegateRunner SaasGatewayPort MemoryStore DeckFault
        DeckResult UnknownCapability BuildFailed BridgeFault BackendFault
    """,
    "induscode.deck.builtin": """
        BuiltinCard BuiltinDescriptor BridgeBuilder builtin_bridge builtin_ids builtin_profiles
        builtin_descriptors builtin_cards build_builtin build_builtins_for_profile READ_ONLY
        MUTATING
    """,
    "induscode.deck.catalog": """
        capability_cards capability_index capability_ids has_capability find_card card_profiles
        cards_for_profile
    """,
    "induscode.deck.provision": "provision_deck cards_for_deck_profile ToolDeck",
    "induscode.deck.toolbox": "DeckToolBox DeckRunner project_result",
    "induscode.deck.cards": """
        app_novel_cards todo_card daemon_card task_card saas_card memory_card enter_plan_mode_card
        exit_plan_mode_card
    """,
    "induscode.deck.cards.todo": "todo_card TodoLedger TodoItem TodoState TodoWeight",
    "induscode.deck.cards.bg_process": "daemon_card DaemonTable MAX_BUFFERED_LINES STOP_GRACE_MS",
    "induscode.deck.cards.memory": "memory_card InMemoryStore",
    "induscode.deck.cards.checkpoint": "maybe_wrap_checkpoint CheckpointingCard CHECKPOINTED_TOOLS",
    "induscode.deck.cards.plan": "plan_slug plan_file_path write_plan read_plan PLANS_DIRNAME",
    "induscode.deck.mcp.ledger": """
        BridgeLedger EnrollRequest BridgeEntry BridgeOp LedgerSnapshot BridgeKey reduce_ledger
        BridgeCapability bridge_box_to_capabilities server_of_qualified unqualified_tool
        bridge_content_key bridge_ulid_key qualify_bridge_name
    """,
    "induscode.deck.mcp": """
        attach_bridge_capabilities detach_bridge AttachResult bridge_config bridge_capability_card
        load_mcp_config discover_mcp_config bridge_tool_names bridge_tool_counts bridge_status
    """,
    "induscode.boot.runners": "load_mcp_capabilities",
    "induscode.launch.flags": "flag_specs FlagSpec FlagKind FlagGroup",
    "induscode.launch.invocation": "Invocation",
    "indusagi.capabilities.tools": """
        read_tool ls_tool grep_tool find_tool websearch_tool webfetch_tool todo_read_tool write_tool
        edit_tool bash_tool process_tool todo_set_tool READ_ONLY_NAMES MUTATING_NAMES
    """,
}


@pytest.mark.parametrize("module", list(NAMES))
def test_a_documented_module_has_its_names(module: str) -> None:
    found = importlib.import_module(module)
    missing = [name for name in NAMES[module].split() if not hasattr(found, name)]
    assert missing == []


def test_the_door_to_enrolment_names_what_it_loads() -> None:
    door = importlib.import_module("induscode.deck.mcp")
    tree = ast.parse(inspect.getsource(door))
    typed = {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("induscode")
        for name in node.names
    }
    assert typed == set(NAMES["induscode.deck.mcp"].split()) == set(door._HOMES)
    assert typed <= set(dir(door))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        door.nothing  # noqa: B018 — the look itself is what is tested
