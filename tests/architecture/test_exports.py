"""The names that others import, and where from. A name may be added; none may go."""

from __future__ import annotations

import importlib
from importlib import import_module
from types import ModuleType

import pytest

NAMES = {
    "indusagi.core": """
        CancelToken CoreError JsonLike JsonObject JsonValue Note NotJson compact_json content_hash
        iso_utc new_ulid now_ms
    """,
    "indusagi.runtime": """
        JsonContentBlock JsonSchema Keep ProgressSink TextContentBlock ToolBox ToolCall
        ToolContentBlock ToolDescriptor ToolOutcome ToolProgress ToolResult ToolRunner
        project_content
    """,
    "indusagi.interop": """
        HostLimits HttpHost HttpSettings ProviderHost ProviderHostInfo RunningProviderHost
        create_provider_host create_relay_host RelayHost linked_pair BridgeConfig CLIENT_NAME
        CLIENT_VERSION EndpointPhase EndpointStatus FAULT_KINDS FaultCause
        FaultDetail FaultKind FaultReason FleetEvent FleetStatus Handlers InjectedTransport
        MountedBridge MountedProtocolBridge MountedTool ProtocolFault QUALIFIER RemoteCallResult
        RemoteTool RemoteToolRef ServerConfig ServerEndpoint ServerEndpointImpl ServerFleet
        ServerFleetImpl ServerLimits SlowStart SseServerConfig StartHistory StartPolicy
        StdioServerConfig StreamableHttpServerConfig
        Supervision TransportKind create_server_endpoint is_protocol_fault is_terminal_phase
        is_usable_phase model_schema mount_protocol_bridge normalize_schema protocol_fault
        qualify_tool_name start_server_fleet
    """,
    "induscode.addons": """
        Addon AddonContext AddonError Allow Ask Deny InterceptedCall Interceptor InterceptorDecision Replace annotate
        replace_texts
    """,
    "indusagi.capabilities": """
        ContextId DefinedTool DirEntry Ended FileKind FileStat Framework Fs InvalidTool
        JsonContentBlock LocalFs LocalShell OutputBudget PerContext ReadState ReadStateHandle
        STOP_GRACE_MS SessionDir Shell ShellProcess ShellResult TextContentBlock ToolBox
        ToolContentBlock ToolContext ToolRegistry ToolResult ToolSpec define_tool
        make_local_context standard_budget Tool ToolCall ToolDescriptor ToolOutcome MUTATING_NAMES
        READ_ONLY_NAMES bash_tool edit_tool
        find_tool grep_tool ls_tool native_tool native_tools process_tool read_tool todo_read_tool
        todo_set_tool web_fetch_tool web_search_tool webfetch_tool websearch_tool write_tool
    """,
}


def public_names(module: ModuleType) -> set[str]:
    # By `dir`, since a door may load its names when they are first used.
    return {
        name
        for name in dir(module)
        if not name.startswith("_")
        and name not in {"TYPE_CHECKING", "annotations"}
        and not isinstance(value := getattr(module, name), ModuleType)
        and value is not import_module
    }


@pytest.mark.parametrize("module", list(NAMES))
def test_a_documented_surface_exports_its_names_and_no_others(module: str) -> None:
    assert public_names(importlib.import_module(module)) == set(NAMES[module].split())


@pytest.mark.parametrize("module", list(NAMES))
def test_a_name_means_the_same_wherever_it_is_imported_from(module: str) -> None:
    here = importlib.import_module(module)
    for other in NAMES:
        there = importlib.import_module(other)
        for name in public_names(here) & public_names(there):
            assert getattr(here, name) is getattr(there, name)
