"""Builds the invocation of a run from its flags.

A list flag that's missing, or has only empty values, becomes `None`: a run can't tell the two apart.
"""

from induscode.core.boot_contract import Invocation as Invocation
from induscode.launch.invocation import build_invocation as build_invocation
