"""Opens the model loop."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio import to_thread

from induscode.conversations.model_loop.loop import ModelLoop
from induscode.conversations.model_loop.providers import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from induscode.calls.telemetry import CallTelemetry
    from induscode.conversations.models import ModelChoice


@asynccontextmanager
async def open_loop(choice: ModelChoice, telemetry: CallTelemetry | None = None) -> AsyncGenerator[ModelLoop]:
    """Open a model's loop for the duration of the block. `telemetry` records each request as a span without texts."""
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
    async with ModelLoop(model) as loop:
        yield loop
