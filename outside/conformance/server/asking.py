"""Asking the client in the middle of a request, the same way in both revisions.

A client of the first has the questions sent while its request waits. One of the second gets them as
the result, and sends its request again with the answers; what is asked for in which round stands
in the state, which is sealed on its way (see `serving`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    RootsCapability,
    SamplingCapability,
    SamplingMessage,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from mcp_types import InputRequest, InputResponse, InputResponseRequestParams

Asked = ServerRequestContext[Any, Any]
"""The request that is being answered."""
Questions = Mapping[str, "InputRequest"]
Answers = Mapping[str, "InputResponse"]
_NEEDS: dict[str, ClientCapabilities] = {
    "elicitation/create": ClientCapabilities(elicitation=ElicitationCapability()),
    "sampling/createMessage": ClientCapabilities(sampling=SamplingCapability()),
    "roots/list": ClientCapabilities(roots=RootsCapability()),
}


def form(message: str, **fields: dict[str, Any]) -> ElicitRequest:
    """A question to the user, whose fields have to be filled in."""
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(prompt: str) -> CreateMessageRequest:
    """A question to the model of the client."""
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def roots() -> ListRootsRequest:
    """A question for the folders of the client."""
    return ListRootsRequest()


async def ask(
    ctx: Asked, params: InputResponseRequestParams, questions: Questions, state: str | None = None
) -> Answers | InputRequiredResult:
    """Give the answers; or, where they come with the next request, what has to be returned now.

    Raises:
        MCPError: The client has not said that it answers such questions.
    """
    for question in questions.values():
        if not can_answer(ctx, question):
            raise _unanswerable(question)
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return {key: await _push(ctx, question) for key, question in questions.items()}
    answers = params.input_responses or {}
    if params.request_state == state and questions.keys() <= answers.keys():
        return answers
    return InputRequiredResult(input_requests=dict(questions), request_state=state)


def can_answer(ctx: Asked, question: InputRequest) -> bool:
    """Say whether the client answers such a question."""
    return ctx.session.check_client_capability(_NEEDS[question.method])


def shown(answer: InputResponse) -> str:
    """Give an answer as a line of text."""
    return answer.model_dump_json(by_alias=True, exclude_none=True)


async def _push(ctx: Asked, question: InputRequest) -> InputResponse:
    about = ServerMessageMetadata(related_request_id=ctx.request_id)
    send = ctx.session.send_request
    if isinstance(question, ElicitRequest):
        return await send(question, ElicitResult, metadata=about)
    if isinstance(question, CreateMessageRequest):
        return await send(question, CreateMessageResult, metadata=about)
    return await send(question, ListRootsResult, metadata=about)


def _unanswerable(question: InputRequest) -> MCPError:
    needed = _NEEDS[question.method].model_dump(by_alias=True, exclude_none=True)
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"this needs a client that answers {question.method}",
        {"requiredCapabilities": needed},
    )
