"""What users were promised: the list that the tests in this folder are held against.

An id names the page and the section of the specification it comes from; `kernel` and `command` are
promises of this project's own pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

TestT = TypeVar("TestT", bound="Callable[..., object]")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One behaviour somebody may rely on."""

    id: str
    sentence: str
    source: str


REQUIREMENTS = (
    Requirement(
        "deck/runtime-adapter/one-text",
        "A single text block is the string itself.",
        "Capability deck, the runtime tool box adapter: project_result",
    ),
    Requirement(
        "deck/runtime-adapter/one-json",
        "A single JSON block is its value.",
        "Capability deck, the runtime tool box adapter: project_result",
    ),
    Requirement(
        "deck/runtime-adapter/many",
        "No block or several become an array of tagged fragments; nothing is dropped.",
        "Capability deck, the runtime tool box adapter: project_result",
    ),
    Requirement(
        "deck/runtime-adapter/unknown-tool",
        "A call of a tool that does not exist is an error outcome, never an exception.",
        "Capability deck, the runtime tool box adapter: DeckRunner::run",
    ),
    Requirement(
        "deck/runtime-adapter/one-context",
        "Calls on one box share one context identity, whatever token each of them carries.",
        "Capability deck, the runtime tool box adapter: with_cancel",
    ),
    Requirement(
        "deck/runtime-adapter/read-state",
        "The read-state handle that a host injects is the one a tool sees.",
        "Capability deck, the runtime tool box adapter: make_local_context, Framework",
    ),
    Requirement(
        "deck/card/never-raises",
        "A run that fails gives an error result; it does not raise.",
        "Capability deck, the Card trait: run",
    ),
    Requirement(
        "deck/card/cancelled",
        "A run whose token is cancelled gives an error result.",
        "Capability deck, the Card trait: run",
    ),
    Requirement(
        "deck/stores/per-session",
        "Two sessions never share the state of a tool.",
        "Capability deck, parity notes: per-session isolation",
    ),
    Requirement(
        "deck/keys/content-hash",
        "content_hash is the first 32 hexadecimal digits of sha256 over compact JSON.",
        "Capability deck, bridge keys",
    ),
    Requirement(
        "deck/keys/insertion-order",
        "content_hash keeps the order of keys; sorting comes before it, where it is wanted.",
        "MCP page, bridge keys: sort_keys",
    ),
    Requirement(
        "deck/keys/ulid",
        "Ids made in the same millisecond still rise.",
        "Capability deck, bridge keys: bridge_ulid_key",
    ),
    Requirement(
        "deck/ledger/iso-time", "A time in a record is ISO 8601 in UTC.", "MCP page, the bridge ledger: iso_now"
    ),
    Requirement(
        "interop/neighbours/core-error",
        "Every error of the project has one root.",
        "Interop (Rust), relationship to neighbours: CoreError",
    ),
    Requirement(
        "interop/fleet/last-registration-wins",
        "Of two tools with one name the later one is used, and a note says so.",
        "Interop (Rust), the server fleet: the registry's convention",
    ),
    Requirement(
        "interop/mounting/content",
        "Text becomes a text block, everything else a JSON block that holds it untouched.",
        "Interop (Python), mounting external servers",
    ),
    Requirement(
        "interop/host/catalog",
        "A box lists its tools with the parameters they were defined with, in a stable order.",
        "Interop (Python), the provider host: catalog",
    ),
    Requirement(
        "interop/host/snippet",
        "A box is served over a pair of streams in the background, as soon as connect returns.",
        "Interop (Python), the provider host: connect",
    ),
    Requirement(
        "interop/host/identity",
        "A host that is told nothing else says that it is indus-provider-host 0.1.0.",
        "Interop (Rust), the provider host: default identity",
    ),
    Requirement(
        "interop/host/dispatch",
        "A tool that fails is a result a model can read; a tool that is not there is -32602.",
        "Interop (Python), the provider host: dispatch",
    ),
    Requirement(
        "serve/one-server",
        "`indus serve` is one MCP server with the tools of every configured server.",
        "Serving the deck, which tools",
    ),
    Requirement(
        "serve/asks-its-client",
        "What a server asks in the middle of a call is asked of the client that made the call.",
        "Serving the deck, which tools",
    ),
    Requirement(
        "serve/transparent",
        "`indus serve --transparent` passes one server through, its answers equal to the byte.",
        "Serving the deck, one server, as it is",
    ),
    Requirement(
        "interop/public-exports/import",
        "Every documented name of the bridge is imported from `indusagi.interop`.",
        "Interop (Python), public exports",
    ),
    Requirement(
        "interop/mounting/snippet",
        "Mounting gives a box of `<server>__<tool>` names and a fleet with a status per server.",
        "Interop (Python), mounting external servers",
    ),
    Requirement(
        "interop/endpoint/snippet",
        "An endpoint is idle, then ready, lists its tools, and answers by the server's own names.",
        "Interop (Python), driving a single endpoint",
    ),
    Requirement(
        "interop/endpoint/single-flight",
        "Concurrent openings share one attempt, and one caller's cancellation does not end it.",
        "Interop (Python), key concepts: owner-task pattern",
    ),
    Requirement(
        "interop/endpoint/single-shot",
        "A closed endpoint cannot be opened; a faulted one gives its fault again.",
        "Interop (Rust), driving a single endpoint",
    ),
    Requirement(
        "interop/fleet/isolation",
        "A server that fails stays in the status with its fault, and its peers serve.",
        "Interop (Rust), the server fleet",
    ),
    Requirement(
        "interop/fleet/last-id-wins",
        "Of two servers with one id the later is used.",
        "Interop (Rust), the server fleet",
    ),
    Requirement(
        "interop/fleet/spin-up",
        "spin_up before any start is a not_connected fault.",
        "Interop (Rust), the server fleet",
    ),
    Requirement(
        "interop/schema/snippet",
        "normalize_schema strips annotations, filters required, collapses tuple items.",
        "Interop (Python), schema normalization",
    ),
    Requirement(
        "interop/faults/by-site",
        "The kind of a fault follows from where it happened.",
        "Interop (Python), the fault model",
    ),
    Requirement(
        "interop/faults/cause",
        "A fault's message is its text alone; what triggered it is its cause.",
        "Interop (Rust), the fault model",
    ),
    Requirement(
        "interop/phases",
        "There are six phases; ready alone is usable, closed and faulted are terminal.",
        "Interop (Python), key concepts: EndpointPhase machine",
    ),
    Requirement(
        "mcp-page/naming", "Remote tools are called `<server>__<tool>`.", "MCP page, tool naming and filtering"
    ),
    Requirement(
        "mcp-page/flag/two-binaries",
        "The commands are one program under several names.",
        "MCP page, the --mcp flag: the two binaries are equivalent",
    ),
    Requirement(
        "kernel/arguments",
        "Arguments that do not fit never reach the tool, and the answer says what would.",
        "README, what it promises",
    ),
    Requirement(
        "kernel/budget",
        "An answer past the budget is cut, and kept in full where only its owner can read it.",
        "README, what it promises",
    ),
    Requirement(
        "kernel/cancel-reaches-commands",
        "Cancelling a call ends the command it runs, with everything that command started.",
        "README, what it promises",
    ),
    Requirement(
        "kernel/task-cancellation",
        "The cancellation of the caller's own task passes through.",
        "README, what it promises",
    ),
    Requirement(
        "command/bad-input",
        "Bad input is one line on standard error and exit code 2.",
        "README, when something is wrong",
    ),
    Requirement(
        "session/first",
        "A model that calls a tool of a server gets all of its answer: text, picture and resource.",
        "README, try it",
    ),
    Requirement(
        "session/fault-reported", "A server that fails is named with its reason, and the run goes on.", "README, try it"
    ),
    Requirement(
        "session/nothing-left", "When a run is over, nothing of it is left running.", "README, what it promises"
    ),
    Requirement(
        "session/cancel-tool",
        "A signal ends the call that is under way, up to the request at the server.",
        "README, what it promises",
    ),
    Requirement(
        "session/cancel-stream", "A signal in the middle of an answer ends the request.", "README, what it promises"
    ),
    Requirement(
        "session/required",
        "A server that must be there and is not ends the run before anything is asked.",
        "The command, asking a model",
    ),
    Requirement("session/continue", "A conversation can be continued.", "The command, asking a model"),
    Requirement(
        "session/stdin",
        "What is piped in is added to the prompt, and only the answer comes out.",
        "The command, asking a model",
    ),
    Requirement(
        "session/pipe",
        "A reader who leaves ends the run, and is no failure that needs words.",
        "The command, exit codes",
    ),
    Requirement(
        "session/secrets", "No secret of ours reaches a server, a command or a file.", "SECURITY, what is not trusted"
    ),
    Requirement(
        "session/untrusted-project",
        "Nothing that a project brings is run before somebody has consented to it.",
        "README, what it promises",
    ),
    Requirement("session/prompt-is-no-flag", "A prompt is never read as a flag.", "The command, asking a model"),
)


def requirement(*ids: str) -> Callable[[TestT], TestT]:
    """Say which requirements a test shows."""

    def mark(test: TestT) -> TestT:
        test.__dict__["requirements"] = ids
        return test

    return mark
