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

    from induscode.session.models import ModelChoice


@asynccontextmanager
async def open_loop(choice: ModelChoice) -> AsyncGenerator[ModelLoop]:
    """Open the loop of a model inside the block.

    Raises:
        WeightsError: A local model cannot be loaded.
    """
    async with AsyncExitStack() as stack:
        if choice.weights is not None:
            from induscode.local_model.server import LocalWeights, open_local_server  # noqa: PLC0415 — for a local model only

            weights = LocalWeights(choice.name, choice.weights, choice.context_window or 0, choice.chat_template)
            address = await stack.enter_async_context(open_local_server(weights))
            choice = replace(choice, api="compatible", base_url=address.base_url, api_key=address.key)
        yield await stack.enter_async_context(ModelLoop(await to_thread.run_sync(open_model, choice)))
