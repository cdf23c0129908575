"""Opens the model loop of a choice; a local model is served by a process for as long as the loop is open."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from induscode.session.model_loop.loop import ModelLoop
from induscode.session.model_loop.providers import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from induscode.calls.telemetry import CallTelemetry
    from induscode.session.models import ModelChoice


@asynccontextmanager
async def open_loop(choice: ModelChoice, telemetry: CallTelemetry | None = None) -> AsyncGenerator[ModelLoop]:
    """Open the loop of a model inside the block; with `telemetry` each request is a span, without its texts.

    Raises:
        WeightsError: A local model cannot be loaded.
    """
    async with AsyncExitStack() as stack:
        if choice.weights is not None:
            from induscode.local_model.server import LocalWeights, open_local_server  # noqa: PLC0415 — for a local model only

            weights = LocalWeights(choice.name, choice.weights, choice.context_window or 0, choice.chat_template)
            address = await stack.enter_async_context(open_local_server(weights))
            choice = replace(choice, api="compatible", base_url=address.base_url, api_key=address.key)
        model = await to_thread.run_sync(open_model, choice)
        if telemetry is not None:
            from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel  # noqa: PLC0415 — for a collector

            traces, metrics = telemetry.providers
            model = InstrumentedModel(
                model,
                InstrumentationSettings(
                    tracer_provider=traces,
                    meter_provider=metrics,
                    include_binary_content=False,
                    include_content=False,
                    include_model_request_parameters=False,
                ),
            )
        yield await stack.enter_async_context(ModelLoop(model))
