"""The ways to make the three calls of a shape."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from outside.flow.gateways import Client
    from outside.flow.shapes import Shape


FAILS: Final = "fails-"
"""Starts the nonce of a call that is answered with an error."""


def _name(tool: str) -> str:
    return tool.replace(".", "__", 1)


def in_order(client: Client, shape: Shape, nonce: str) -> None:
    """Untrusted text, private data, out."""
    for tool in (shape.untrusted, shape.private, shape.outward):
        client.call(_name(tool), nonce)


def private_first(client: Client, shape: Shape, nonce: str) -> None:
    """Private data, untrusted text, out."""
    for tool in (shape.private, shape.untrusted, shape.outward):
        client.call(_name(tool), nonce)


def at_once(client: Client, shape: Shape, nonce: str) -> None:
    """Both at the same time, then out."""
    threads = [
        threading.Thread(target=client.call, args=(_name(tool), nonce)) for tool in (shape.untrusted, shape.private)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.call(_name(shape.outward), nonce)


def by_error(client: Client, shape: Shape, nonce: str) -> None:
    """The attacker's text is in an error."""
    client.call(_name(shape.untrusted), FAILS + nonce)
    client.call(_name(shape.private), nonce)
    client.call(_name(shape.outward), nonce)


def by_resource(client: Client, shape: Shape, nonce: str) -> None:
    """Private data come from a resource."""
    client.call(_name(shape.untrusted), nonce)
    server = shape.private.partition(".")[0]
    uris = [row["uri"] for row in client.ask("resources/list", {})["result"]["resources"]]
    client.ask("resources/read", {"uri": next(uri for uri in uris if f"{server}://data" in uri)})
    client.call(_name(shape.outward), nonce)


def by_view(client: Client, shape: Shape, nonce: str) -> None:
    """The client sees the tools under other names."""
    for tool in (shape.untrusted, shape.private, shape.outward):
        client.call(f"t_{tool.replace('.', '_', 1)}", nonce)


def by_search(client: Client, shape: Shape, nonce: str) -> None:
    """Each call goes through the tool that calls others."""
    for tool in (shape.untrusted, shape.private, shape.outward):
        client.ask(
            "tools/call", {"name": "call_tool", "arguments": {"name": _name(tool), "arguments": {"nonce": nonce}}}
        )


def by_script(client: Client, shape: Shape, nonce: str) -> None:
    """One script makes all calls."""
    tools = (shape.untrusted, shape.private, shape.outward)
    client.call("run_code", code="\n".join(f"await {_function(tool)}(nonce='{nonce}')" for tool in tools))


def after_script(client: Client, shape: Shape, nonce: str) -> None:
    """A script reads, and the client sends."""
    reads = (shape.untrusted, shape.private)
    client.call("run_code", code="\n".join(f"await {_function(tool)}(nonce='{nonce}')" for tool in reads))
    client.call(_name(shape.outward), nonce)


def _function(tool: str) -> str:
    return _name(tool).replace("-", "_")


ROUTES: Final[dict[str, tuple[str, Callable[[Client, Shape, str], None]]]] = {
    "in order": ("plain", in_order),
    "private data first": ("plain", private_first),
    "both at once": ("plain", at_once),
    "text in an error": ("plain", by_error),
    "a resource": ("plain", by_resource),
    "a client without sessions": ("modern", in_order),
    "renamed in a view": ("view", by_view),
    "the search's call_tool": ("search", by_search),
    "run_code": ("plain", by_script),
    "run_code, then a call": ("plain", after_script),
}
"""By name: the gateway it needs, and the calls."""
