"""The model loop, built on pydantic-ai (https://ai.pydantic.dev/). No other package imports that library.

Importing this package takes most of a second, so import it late or in a thread.
"""

import os

# The library prints an advertisement on its first run on a terminal unless this is set.
os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")

from induscode.conversations.model_loop.loop import ModelLoop as ModelLoop
from induscode.conversations.model_loop.loop import open_loop as open_loop
from induscode.conversations.model_loop.providers import VERBATIM as VERBATIM
from induscode.conversations.model_loop.providers import open_model as open_model
from induscode.conversations.model_loop.providers import to_model_fault as to_model_fault
