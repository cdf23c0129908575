"""Re-exports the invocation types that a run boots from."""

from induscode.launch.invocation import Approval as Approval
from induscode.launch.invocation import Invocation as Invocation
from induscode.launch.invocation import OutputFormat as OutputFormat
from induscode.launch.invocation import SandboxMode as SandboxMode
