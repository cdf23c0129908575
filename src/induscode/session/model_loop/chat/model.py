"""A model behind a Chat Completions server."""

from __future__ import annotations

import json
import random
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

import anyio
import httpx2
from pydantic_ai.models import Model

from induscode.session.model_loop.chat.errors import make_connection_error, make_status_error
from induscode.session.model_loop.chat.messages import write_messages, write_tool
from induscode.session.model_loop.chat.stream import ChatStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.profiles import ModelProfile
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext

_CONNECT_S = 30.0
_SILENCE_S = 600.0
_RETRIES = 2
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 60.0
_RETRIED = {408, 409, 429}
"""And 5xx: https://platform.openai.com/docs/guides/error-codes says to send these again."""
_FINAL = (httpx2.ReadTimeout, httpx2.WriteTimeout, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)
"""Errors that come again, or only after a very long time."""


class ChatModel(Model[httpx2.AsyncClient]):
    """One model of one server. Enter it before the first request; it holds the connections."""

    def __init__(
        self, name: str, *, system: str, base_url: str, headers: Mapping[str, str], profile: ModelProfile
    ) -> None:
        """Take a model's name, the name of its provider, and the address of the API."""
        super().__init__(profile=profile)
        self._name, self._system, self._address = name, system, base_url
        self._client = httpx2.AsyncClient(
            headers=dict(headers),
            timeout=httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S),
            verify=_make_tls(base_url),
            # A server that has moved is told of in an error: the key is not sent anywhere else.
            follow_redirects=False,
        )

    @property
    def model_name(self) -> str:
        """Name the model."""
        return self._name

    @property
    def system(self) -> str:
        """Name the provider."""
        return self._system

    @property
    def base_url(self) -> str:
        """Give the address of the API."""
        return self._address

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Read an answer to its end."""
        asked = (messages, model_settings, model_request_parameters)
        async with self.request_stream(*asked) as stream:
            async for _ in stream:
                pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[ChatStream]:
        """Send a request, and give its answer as it comes."""
        _, asked = self.prepare_request(model_settings, model_request_parameters)
        instructions = self._get_instruction_parts(messages, asked) or []
        body: dict[str, Any] = {
            "messages": write_messages(messages, [part.content for part in instructions], self._system),
            "model": self._name,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools := [write_tool(tool) for tool in asked.declared_tool_defs.values()]:
            body |= {"tool_choice": "auto", "tools": tools}
        response = await self._send(body)
        try:
            yield ChatStream(asked, response, self._name, self._system, self._address)
        finally:
            await response.aclose()

    async def _send(self, body: Mapping[str, Any]) -> httpx2.Response:
        """Send a request until a server answers it, a few times at most.

        Raises:
            ModelAPIError: It is refused, or there is no server.
        """
        # A lone surrogate cannot be sent; JSON would let it through in an escape that servers
        # refuse.
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        url = self._address.rstrip("/") + "/chat/completions"
        for attempt in range(_RETRIES + 1):
            last = attempt == _RETRIES
            request = self._client.build_request(
                "POST",
                url,
                content=text.encode("utf-8", "replace"),
                headers={"content-type": "application/json", "accept": "application/json"},
            )
            try:
                response = await self._client.send(request, stream=True)
                if response.is_success:
                    return response
                refusal = (await response.aread()).decode("utf-8", "replace")
            except httpx2.RequestError as exc:
                if last or isinstance(exc, _FINAL):
                    raise make_connection_error(self._name, exc) from exc
                delay = None
            else:
                delay = _find_delay(response)
                if last or not _is_passing(response) or (delay or 0) > _LONGEST_DELAY_S:
                    status, headers = response.status_code, dict(response.headers)
                    raise make_status_error(self._name, status, refusal, headers)
            if delay is None:
                delay = _FIRST_DELAY_S * 2**attempt * random.uniform(0.75, 1.0)
            await anyio.sleep(delay)
        raise AssertionError


def _make_tls(base_url: str) -> ssl.SSLContext | bool:
    """Give the settings for TLS: the usual ones (True) wherever TLS may be spoken.

    Reading all certificate authorities takes longer than an answer of a local server.
    """
    if base_url.startswith("http://") and not getproxies():
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no authority
    return True


def _is_passing(response: httpx2.Response) -> bool:
    """Tell whether the same request may be answered later."""
    if told := response.headers.get("x-should-retry"):
        return told == "true"
    return response.status_code in _RETRIED or response.status_code >= 500


def _find_delay(response: httpx2.Response) -> float | None:
    """Read how long a server wants to be left alone, in seconds (RFC 9110, section 10.2.3)."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
