"""The bridge to MCP: tools of servers become tools of the kernel, and ours are served to clients.

A name is loaded when it is first used: who needs a configuration or a fault needs no event loop.
"""

from importlib import import_module

# Not later: its module has the same name, and would take its place once anybody loads it.
from indusagi.interop.protocol_bridge.schema.model_view import model_schema as model_schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.bridge import MountedProtocolBridge as MountedProtocolBridge
    from indusagi.interop.protocol_bridge.bridge import MountedTool as MountedTool
    from indusagi.interop.protocol_bridge.bridge import mount_protocol_bridge as mount_protocol_bridge
    from indusagi.interop.protocol_bridge.client.connect import CLIENT_NAME as CLIENT_NAME
    from indusagi.interop.protocol_bridge.client.connect import CLIENT_VERSION as CLIENT_VERSION
    from indusagi.interop.protocol_bridge.client.connect import InjectedTransport as InjectedTransport
    from indusagi.interop.protocol_bridge.client.handlers import Handlers as Handlers
    from indusagi.interop.protocol_bridge.client.memory import linked_pair as linked_pair
    from indusagi.interop.protocol_bridge.client.start.policy import StartHistory as StartHistory
    from indusagi.interop.protocol_bridge.client.start.policy import StartPolicy as StartPolicy
    from indusagi.interop.protocol_bridge.client.supervision import Supervision as Supervision
    from indusagi.interop.protocol_bridge.contract import FAULT_KINDS as FAULT_KINDS
    from indusagi.interop.protocol_bridge.contract import QUALIFIER as QUALIFIER
    from indusagi.interop.protocol_bridge.contract import BridgeConfig as BridgeConfig
    from indusagi.interop.protocol_bridge.contract import EndpointPhase as EndpointPhase
    from indusagi.interop.protocol_bridge.contract import EndpointStatus as EndpointStatus
    from indusagi.interop.protocol_bridge.contract import FaultCause as FaultCause
    from indusagi.interop.protocol_bridge.contract import FaultDetail as FaultDetail
    from indusagi.interop.protocol_bridge.contract import FaultKind as FaultKind
    from indusagi.interop.protocol_bridge.contract import FaultReason as FaultReason
    from indusagi.interop.protocol_bridge.contract import FleetStatus as FleetStatus
    from indusagi.interop.protocol_bridge.contract import MountedBridge as MountedBridge
    from indusagi.interop.protocol_bridge.contract import ProtocolFault as ProtocolFault
    from indusagi.interop.protocol_bridge.contract import RemoteCallResult as RemoteCallResult
    from indusagi.interop.protocol_bridge.contract import RemoteTool as RemoteTool
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef as RemoteToolRef
    from indusagi.interop.protocol_bridge.contract import ServerConfig as ServerConfig
    from indusagi.interop.protocol_bridge.contract import ServerEndpoint as ServerEndpoint
    from indusagi.interop.protocol_bridge.contract import ServerFleet as ServerFleet
    from indusagi.interop.protocol_bridge.contract import ServerLimits as ServerLimits
    from indusagi.interop.protocol_bridge.contract import SlowStart as SlowStart
    from indusagi.interop.protocol_bridge.contract import SseServerConfig as SseServerConfig
    from indusagi.interop.protocol_bridge.contract import StdioServerConfig as StdioServerConfig
    from indusagi.interop.protocol_bridge.contract import StreamableHttpServerConfig as StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.contract import TransportKind as TransportKind
    from indusagi.interop.protocol_bridge.contract import is_protocol_fault as is_protocol_fault
    from indusagi.interop.protocol_bridge.contract import is_terminal_phase as is_terminal_phase
    from indusagi.interop.protocol_bridge.contract import is_usable_phase as is_usable_phase
    from indusagi.interop.protocol_bridge.contract import protocol_fault as protocol_fault
    from indusagi.interop.protocol_bridge.contract import qualify_tool_name as qualify_tool_name
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl as ServerEndpointImpl
    from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint as create_server_endpoint
    from indusagi.interop.protocol_bridge.fleet import FleetEvent as FleetEvent
    from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl as ServerFleetImpl
    from indusagi.interop.protocol_bridge.fleet import start_server_fleet as start_server_fleet
    from indusagi.interop.protocol_bridge.host import ProviderHost as ProviderHost
    from indusagi.interop.protocol_bridge.host import ProviderHostInfo as ProviderHostInfo
    from indusagi.interop.protocol_bridge.host import create_provider_host as create_provider_host
    from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits as HostLimits
    from indusagi.interop.protocol_bridge.host.http.settings import HttpHost as HttpHost
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings as HttpSettings
    from indusagi.interop.protocol_bridge.host.server import RunningProviderHost as RunningProviderHost
    from indusagi.interop.protocol_bridge.relay import RelayHost as RelayHost
    from indusagi.interop.protocol_bridge.relay import create_relay_host as create_relay_host
    from indusagi.interop.protocol_bridge.schema.normalize import normalize_schema as normalize_schema

_HOMES = {
    "MountedProtocolBridge": "bridge",
    "MountedTool": "bridge",
    "mount_protocol_bridge": "bridge",
    "CLIENT_NAME": "client.connect",
    "CLIENT_VERSION": "client.connect",
    "InjectedTransport": "client.connect",
    "FAULT_KINDS": "contract",
    "QUALIFIER": "contract",
    "BridgeConfig": "contract",
    "EndpointPhase": "contract",
    "EndpointStatus": "contract",
    "FaultCause": "contract",
    "FaultDetail": "contract",
    "FaultKind": "contract",
    "FaultReason": "contract",
    "FleetStatus": "contract",
    "MountedBridge": "contract",
    "ProtocolFault": "contract",
    "RemoteCallResult": "contract",
    "RemoteTool": "contract",
    "RemoteToolRef": "contract",
    "ServerConfig": "contract",
    "ServerEndpoint": "contract",
    "ServerFleet": "contract",
    "ServerLimits": "contract",
    "SlowStart": "contract",
    "SseServerConfig": "contract",
    "StdioServerConfig": "contract",
    "StreamableHttpServerConfig": "contract",
    "TransportKind": "contract",
    "is_protocol_fault": "contract",
    "is_terminal_phase": "contract",
    "is_usable_phase": "contract",
    "protocol_fault": "contract",
    "qualify_tool_name": "contract",
    "ServerEndpointImpl": "endpoint",
    "create_server_endpoint": "endpoint",
    "FleetEvent": "fleet",
    "ServerFleetImpl": "fleet",
    "start_server_fleet": "fleet",
    "Handlers": "client.handlers",
    "ProviderHost": "host",
    "ProviderHostInfo": "host",
    "RunningProviderHost": "host.server",
    "create_provider_host": "host",
    "linked_pair": "client.memory",
    "HostLimits": "host.dispatcher",
    "HttpHost": "host.http.settings",
    "HttpSettings": "host.http.settings",
    "model_schema": "schema.model_view",
    "RelayHost": "relay",
    "create_relay_host": "relay",
    "normalize_schema": "schema",
    "StartHistory": "client.start.policy",
    "StartPolicy": "client.start.policy",
    "Supervision": "client.supervision",
}
__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll] — loaded by name, below


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
