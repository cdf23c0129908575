"""An audit log: one JSON line for every call, with its outcome and duration.

The lines are appended to `audit.jsonl` in the state directory of the addon. Arguments may hold anything, so that a line
has their names and a digest. The addon is required: a call that cannot be logged gives no result.
"""

import hashlib
import json
import os

from indusagi.core import iso_utc, now_ms
from indusagi.runtime import ToolResult
from induscode.addons import Addon, AddonContext, InterceptedCall, Interceptor


class AuditLog(Interceptor):
    """Appends a line after each call; `after` sees denied, failed and cancelled calls too."""

    def __init__(self, path: str) -> None:
        self._path = path

    def after(self, call: InterceptedCall, result: ToolResult, /) -> None:
        """Append the line of a call. A plain function may block: it runs in a thread of its own."""
        arguments = json.dumps(call.arguments, sort_keys=True)
        line = {
            "at": iso_utc(now_ms()),
            "call": call.number,
            "tool": call.tool,
            "server": call.server,
            "agent": call.agent,
            "sub_agent": call.is_sub_agent,
            "arguments": sorted(call.arguments) if isinstance(call.arguments, dict) else [],
            "digest": hashlib.sha256(arguments.encode()).hexdigest()[:16],
            "outcome": str(result.details.get("code", "error")) if result.is_error else "ok",
            "duration_ms": round(call.elapsed_s * 1000, 1),
        }
        # One write in append mode: lines of several processes stay whole (write(2)).
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, json.dumps(line).encode() + b"\n")
        finally:
            os.close(handle)


def addon(context: AddonContext) -> Addon:
    """Build the addon."""
    return Addon(interceptors=[AuditLog(os.path.join(context.make_state_dir(), "audit.jsonl"))], required=True)
