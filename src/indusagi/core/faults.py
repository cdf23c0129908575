"""The root of all errors of this project, the error tree, and notes.

CoreError                  anything of ours that a caller may want to catch
├── NotJson                a value that JSON can't represent, with its path
├── InvalidTool            a tool that cannot work as it is defined
├── AmbiguousDefinitionError  names in a definition that are equal without invisible characters
├── ProtocolFault          anything that goes wrong between us and a server; branch on its kind
├── DeckFault              something the deck cannot do
│   ├── UnknownCapability  no card has this id
│   ├── BuildFailed        a card could not be built
│   ├── BridgeFault        an MCP configuration, a name or a lock that cannot be used
│   │   ├── SilentStoreError  a ledger that doesn't answer
│   │   └── ContentRefused  a resource or prompt that may not be used
│   │       ├── DeniedContent  a resource or prompt that a permission rule denies
│   │       └── UnlistedPrompt  a prompt that its server does not list
│   └── BackendFault       a handle of the host that cannot be used
├── AuthFault              a sign-in that failed
│   └── SignInRequired     only the user can continue
├── SecretFault            a secret that cannot be read or stored
├── ConnectorFault         a connector that cannot be added, read or used
│   └── DocumentFault      an OpenAPI document that cannot be used
├── ClusterFault           something that goes wrong between a node and its cluster
│   ├── UnheardError       a request to another node that no node has received
│   └── WrongKeyError      a cluster with another key than this process
├── SearchUnavailableError  a search that this Python cannot do
├── EngineUnavailable      an interpreter of `run_code` that cannot be used here
├── RegistryError          an MCP registry that does not answer, or an entry of it that cannot be used
├── PackageError           a package of npm or PyPI that can't be found
├── WeightsError           weights that are absent or can't be used
├── AgentFileError         a file of an agent that cannot be used
├── AddonError             an addon that cannot be used as it is
├── SkillError             a skill that cannot be used as it is
├── HookError              a hook without an answer
├── ConsentChangedError    a yes to something that has changed since the user looked
├── InstallError           a client's file that cannot be changed
├── InvalidPromptError     nothing to ask, or too much of it
├── InvalidRuleError       a permission rule that cannot be parsed
├── UnansweredError        a question that nobody answered
├── MissingExtraError      packages of an extra that are not installed
├── NoModelError           no model to ask, or none of that name
├── InvalidAddressError    an invalid address of a model server
├── ConversationError      no conversation to continue
│   └── OpenElsewhereError  a conversation that another process has open
├── CompactionError        a conversation that could not be summarised
│   └── NothingToCompactError  a conversation with nothing to summarise
├── InvalidFormError       a server's form that a user can't fill in
├── IssuerError            an authorization server that does not answer, or whose documents are invalid
├── UnreadableCallsError   records of calls that cannot be read
├── BrokenConfigError      a changed configuration file that cannot be read
├── SlashError             a slash command that cannot be carried out
└── RepeatedCallError      a model that repeats the same call

Add a class to the tree in the commit that adds the class; a test compares the two.
Something skipped, replaced or left out without stopping the work is a `Note`, not an error: it accompanies a result
and is never raised.
"""

from typing import cast

from indusagi.core.records import record


class CoreError(Exception):
    """Base class of all errors that this project raises."""


_MEANINGS = {
    "BrokenPipeError": "the other end closed the connection",
    "BrokenResourceError": "the connection broke",
    "CancelledError": "it was cancelled",
    "ClosedResourceError": "the connection was closed",
    "ConnectError": "the connection could not be made",
    "ConnectionAbortedError": "the connection was aborted",
    "ConnectionRefusedError": "the connection was refused",
    "ConnectionResetError": "the connection was reset",
    "EOFError": "the data ended early",
    "EndOfStream": "the connection ended",
    "FileNotFoundError": "no such file",
    "KeyboardInterrupt": "it was interrupted",
    "MemoryError": "there is not enough memory",
    "PermissionError": "permission was denied",
    "ReadError": "the connection was lost while reading",
    "RemoteProtocolError": "the other end did not keep to HTTP",
    "TimeoutError": "it took too long",
    "WriteError": "the connection was lost while writing",
}
"""Meanings of exceptions often raised without a message, by class name."""
_MAX_CAUSES = 16
"""How many causes to follow, since a chain may be cyclic."""


def describe_error(exc: BaseException) -> str:
    """Describe an exception; never empty.

    Without a message, use its cause, the meaning of its class, or its class name.
    """
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        return "; ".join(dict.fromkeys(describe_error(inner) for inner in group.exceptions))
    text = _text_of(exc)
    if text:
        return text
    kind, cause = type(exc), exc.__cause__
    for _ in range(_MAX_CAUSES):
        if cause is None:
            break
        if message := _text_of(cause):
            return f"{kind.__name__}: {message}"
        cause = cause.__cause__
    meanings = (_MEANINGS.get(base.__name__) for base in kind.__mro__)
    meaning = next(filter(None, meanings), None)
    return kind.__name__ if meaning is None else f"{meaning} ({kind.__name__})"


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc).strip()
    except Exception:  # noqa: BLE001 — boundary: a foreign class's __str__
        return ""


@record
class Note:
    """What happened to `owner`, and what to do about it."""

    owner: str
    """A tool, a server, or a file with its row."""
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        tail = f" ({self.remedy})" if self.remedy else ""
        return f"{self.owner}: {self.message}{tail}"
