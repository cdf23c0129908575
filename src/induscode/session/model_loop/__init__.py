"""The model loop, on pydantic-ai. The only package that knows it; importing it takes its time."""

import os

# The library prints an advertisement at the first run on a terminal; this is its own switch.
os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")

from induscode.session.model_loop.loop import ModelLoop as ModelLoop
from induscode.session.model_loop.providers import VERBATIM as VERBATIM
from induscode.session.model_loop.providers import fault_of as fault_of
from induscode.session.model_loop.providers import open_model as open_model
