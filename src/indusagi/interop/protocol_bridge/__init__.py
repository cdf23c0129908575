"""The bridge to MCP servers: their tools become tools of the kernel."""

from indusagi.interop.protocol_bridge.bridge import MountedProtocolBridge as MountedProtocolBridge
from indusagi.interop.protocol_bridge.bridge import MountedTool as MountedTool
from indusagi.interop.protocol_bridge.bridge import mount_protocol_bridge as mount_protocol_bridge
from indusagi.interop.protocol_bridge.connect import CLIENT_NAME as CLIENT_NAME
from indusagi.interop.protocol_bridge.connect import CLIENT_VERSION as CLIENT_VERSION
from indusagi.interop.protocol_bridge.connect import InjectedTransport as InjectedTransport
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
from indusagi.interop.protocol_bridge.contract import SseServerConfig as SseServerConfig
from indusagi.interop.protocol_bridge.contract import StdioServerConfig as StdioServerConfig
from indusagi.interop.protocol_bridge.contract import (
    StreamableHttpServerConfig as StreamableHttpServerConfig,
)
from indusagi.interop.protocol_bridge.contract import TransportKind as TransportKind
from indusagi.interop.protocol_bridge.contract import is_protocol_fault as is_protocol_fault
from indusagi.interop.protocol_bridge.contract import is_terminal_phase as is_terminal_phase
from indusagi.interop.protocol_bridge.contract import is_usable_phase as is_usable_phase
from indusagi.interop.protocol_bridge.contract import protocol_fault as protocol_fault
from indusagi.interop.protocol_bridge.contract import qualify_tool_name as qualify_tool_name
from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl as ServerEndpointImpl
from indusagi.interop.protocol_bridge.endpoint import (
    create_server_endpoint as create_server_endpoint,
)
from indusagi.interop.protocol_bridge.fleet import FleetEvent as FleetEvent
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl as ServerFleetImpl
from indusagi.interop.protocol_bridge.fleet import start_server_fleet as start_server_fleet
from indusagi.interop.protocol_bridge.handlers import Handlers as Handlers
from indusagi.interop.protocol_bridge.host import ProviderHost as ProviderHost
from indusagi.interop.protocol_bridge.host import ProviderHostInfo as ProviderHostInfo
from indusagi.interop.protocol_bridge.host import RunningProviderHost as RunningProviderHost
from indusagi.interop.protocol_bridge.host import create_provider_host as create_provider_host
from indusagi.interop.protocol_bridge.host_links import linked_pair as linked_pair
from indusagi.interop.protocol_bridge.host_session import HostLimits as HostLimits
from indusagi.interop.protocol_bridge.host_settings import HttpHost as HttpHost
from indusagi.interop.protocol_bridge.host_settings import HttpSettings as HttpSettings
from indusagi.interop.protocol_bridge.model_schema import model_schema as model_schema
from indusagi.interop.protocol_bridge.schema import normalize_schema as normalize_schema
from indusagi.interop.protocol_bridge.supervision import Supervision as Supervision
