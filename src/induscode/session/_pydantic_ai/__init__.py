"""The model loop, on pydantic-ai. The only package that knows it; importing it takes its time."""

import os

# The library prints an advertisement at the first run on a terminal; this is its own switch.
os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")

from induscode.session._pydantic_ai.loop import Engine as Engine
from induscode.session._pydantic_ai.models import VERBATIM as VERBATIM
from induscode.session._pydantic_ai.models import fault_of as fault_of
from induscode.session._pydantic_ai.models import open_model as open_model
