"""A server without faults, and with a tool for everything that a result can be.

Options: `--era legacy|modern|both`, `--version V` (answered to `initialize`), `--pages N` (its
lists come in N pages), `--tools N` (so many more tools, `tool_0` …), `--rich JSON` (one more tool,
`rich`, with these fields), `--log FILE`, `--hold FILE` (does nothing while it is there, until the end of its input).
"""

from __future__ import annotations

import json
import os
import select
import sys

# Started with -I as well, when Python does not look beside the script by itself.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer import Call, Peer, RpcError, complain, split, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from peer import Json

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
NUMBER: Json = {"type": "number"}
STRING: Json = {"type": "string"}
QUESTIONS: Json = {
    "elicitation/create": {
        "mode": "form",
        "message": "What is your name?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "sampling/createMessage": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Say something."}}],
        "maxTokens": 100,
    },
    "roots/list": {},
}
RESOURCES: list[Json] = [
    {"uri": "test://text", "name": "text", "mimeType": "text/plain"},
    {"uri": "test://blob", "name": "blob", "mimeType": "image/png"},
]


def echo(call: Call) -> Json:
    """Say it again."""
    return text(str(call.arguments["text"]))


def add(call: Call) -> Json:
    """Add two numbers."""
    total = call.arguments["a"] + call.arguments["b"]
    return text(str(total), structuredContent={"sum": total})


def media(call: Call) -> Json:
    """Give one block of every kind, and one of a kind that nobody knows."""
    return {
        "vendor/first": {"z": 1, "a": None},
        "content": [
            {
                "text": "words",
                "annotations": {"priority": 0.5, "audience": ["user"], "lastModified": None},
                "type": "text",
                "_meta": {"vendor/key": [1, None]},
            },
            {"mimeType": "image/png", "type": "image", "data": PNG, "x-vendor": True},
            {"type": "audio", "data": WAV, "mimeType": "audio/wav", "annotations": None},
            {"type": "resource_link", "uri": "test://text", "name": "text", "size": 5},
            {"type": "resource", "resource": {"uri": "test://text", "text": "inner", "mimeType": None}},
            {"resource": {"blob": PNG, "uri": "test://blob", "mimeType": "image/png"}, "type": "resource"},
            {"type": "hologram", "layers": [{"depth": 1.5}], "null": None},
        ],
        "structuredContent": {"b": 2, "a": None},
        "_meta": {"vendor/trace": "t-1"},
        "isError": False,
    }


def fail(call: Call) -> Json:
    """Fail, and say so in the result."""
    return text("it did not work", isError=True)


def refuse(call: Call) -> Json:
    """Answer with an error of the protocol."""
    raise RpcError(-32602, "refused on purpose", {"hint": "ask for something else"})


def env(call: Call) -> Json:
    """Tell the environment of this process."""
    return text(json.dumps(dict(os.environ)), structuredContent=dict(os.environ))


def pid(call: Call) -> Json:
    """Tell the process, its group and its parent."""
    facts = {"pid": os.getpid(), "group": os.getpgid(0), "parent": os.getppid()}
    return text(str(facts["pid"]), structuredContent=facts)


def big(call: Call) -> Json:
    """Give that many bytes of text."""
    return text("x" * int(call.arguments["bytes"]))


def slow(call: Call) -> Json | None:
    """Take some seconds, with that many notices of progress on the way."""
    steps = int(call.arguments.get("progress", 0))
    pause_s = float(call.arguments.get("seconds", 1)) / (steps + 1)
    for step in range(steps + 1):
        if call.cancelled.wait(pause_s):
            complain(f"cancelled {call.id}\n")
            call.peer.log(f"cancelled {call.id}")
            return None
        if step < steps:
            call.progress(step + 1, steps, f"step {step + 1}")
    return text("done")


def mutate(call: Call) -> Json:
    """Change the tools: `add` or `remove` the tool `extra`, or `describe` echo in other words."""
    peer, kind = call.peer, str(call.arguments.get("kind", "add"))
    peer.tools[:] = [tool for tool in peer.tools if tool["name"] != "extra"]
    if kind == "add":
        peer.add("extra", echo, {"text": STRING})
    elif kind == "describe":
        peer.tools[0] = {**peer.tools[0], "description": "Say it again, but differently."}
    peer.changed()
    return text(kind)


def grow(call: Call) -> Json:
    """Add that many tools (`tool_N`) to those there are."""
    generate(call.peer, int(call.arguments.get("count", 1)))
    call.peer.changed()
    return text(str(len(call.peer.tools)))


def ask(call: Call) -> Json:
    """Ask the client something, as often as told, and give what came back."""
    method = str(call.arguments["method"])
    rounds = int(call.arguments.get("rounds", 1))
    if not call.allows(method):
        if call.modern:
            needed: Json = {"requiredCapabilities": {method.partition("/")[0]: {}}}
            raise RpcError(-32021, f"this needs {method}", needed)
        return text(f"this needs {method}", isError=True)
    if call.modern:
        return ask_by_rounds(call, method, rounds)
    answers = [call.peer.push(method, QUESTIONS[method]).wait() or {} for _ in range(rounds)]
    given = answers[-1].get("result", answers[-1].get("error"))
    return text(json.dumps(given), structuredContent=given)


def ask_by_rounds(call: Call, method: str, rounds: int) -> Json:
    state = str(call.params.get("requestState", "round 0"))
    done = int(state.removeprefix("round "))
    responses: Json = call.params.get("inputResponses") or {}
    given = responses.get("question")
    if done and given is None:
        raise RpcError(-32602, "the question was not answered")
    if done >= rounds:
        return text(json.dumps(given), structuredContent=given)
    question: Json = {"method": method, "params": QUESTIONS[method]}
    return {
        "resultType": "input_required",
        "inputRequests": {"question": question},
        "requestState": f"round {done + 1}",
    }


def generate(peer: Peer, count: int) -> None:
    first = sum(name.startswith("tool_") for name in peer.run)
    for number in range(first, first + count):
        peer.add(f"tool_{number}", echo, {"text": STRING})


def read_resource(call: Call) -> Json:
    contents = {"test://text": {"text": "inner"}, "test://blob": {"blob": PNG}}
    uri = str(call.params["uri"])
    if uri == "test://asked" and call.modern:
        given = ask_by_rounds(call, "elicitation/create", 1)
        return given if "resultType" in given else {"contents": [{"uri": uri, **given["content"][0]}]}
    if uri not in contents:
        raise RpcError(-32602 if call.modern else -32002, "no such resource", {"uri": uri})
    return {"contents": [{"uri": uri, **contents[uri]}]}


def get_prompt(call: Call) -> Json:
    said = f"Greet {call.arguments.get('who', 'everybody')}."
    return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}


def set_level(call: Call) -> Json:
    said = {"level": call.params["level"], "logger": "honest", "data": "heard you"}
    call.peer.notify("notifications/message", said)
    return {}


def wait_while(hold: str) -> None:
    """Wait until the file is gone, or the client."""
    ended = select.poll()
    ended.register(0, 0)  # no event but the end, which leaves what is to be read
    while os.path.exists(hold):
        if ended.poll(20):
            sys.exit()


def main() -> None:
    _, options = split(sys.argv[1:])
    if "hold" in options:
        wait_while(options["hold"])
    peer = Peer("honest", options)
    output = {"type": "object", "properties": {"sum": NUMBER}, "required": ["sum"]}
    read_only = {"readOnlyHint": True, "title": "Adder"}
    peer.add("echo", echo, {"text": STRING})
    peer.add("add", add, {"a": NUMBER, "b": NUMBER}, outputSchema=output, annotations=read_only)
    for run in (media, fail, refuse, env, pid):
        peer.add(run.__name__, run)
    peer.add("big", big, {"bytes": NUMBER})
    peer.add("slow", slow, {"seconds": NUMBER, "progress": NUMBER}, thread=True)
    peer.add("mutate", mutate, {"kind": STRING})
    peer.add("grow", grow, {"count": NUMBER})
    peer.add("ask", ask, {"method": STRING, "rounds": NUMBER}, thread=True)
    generate(peer, int(options.get("tools", "0")))
    if "rich" in options:
        peer.add("rich", media, **json.loads(options["rich"]))
    peer.capabilities |= {"resources": {}, "prompts": {}, "completions": {}, "logging": {}}
    templates: list[Json] = [{"uriTemplate": "test://{name}", "name": "any"}]
    prompts: list[Json] = [{"name": "greet", "arguments": [{"name": "who", "required": False}]}]
    completion: Json = {"completion": {"values": ["Ada", "Alan"], "total": 2, "hasMore": False}}
    peer.methods |= {
        "resources/list": lambda call: peer.page(call, "resources", RESOURCES),
        "resources/templates/list": lambda call: peer.page(call, "resourceTemplates", templates),
        "resources/read": read_resource,
        "prompts/list": lambda call: peer.page(call, "prompts", prompts),
        "prompts/get": get_prompt,
        "completion/complete": lambda call: completion,
        "logging/setLevel": set_level,
    }
    peer.serve()


main()
