"""What a run boots from: the invocation, as the boot path takes it."""

from induscode.launch.invocation import Approval as Approval
from induscode.launch.invocation import Invocation as Invocation
from induscode.launch.invocation import OutputFormat as OutputFormat
from induscode.launch.invocation import SandboxMode as SandboxMode
