"""From the flags of a command line to the invocation that a run boots from.

There is one type of invocation. A list flag that was not given, or only with empty values, is None
in it: a run cannot tell the two apart, so neither can the value.
"""

from induscode.core.boot_contract import Invocation as Invocation
from induscode.launch.invocation import build_invocation as build_invocation
