"""Public types of the command line: the flag table and the invocation."""

from induscode.launch.flags import FlagGroup as FlagGroup
from induscode.launch.flags import FlagKind as FlagKind
from induscode.launch.flags import FlagSpec as FlagSpec
from induscode.launch.invocation import Invocation as Invocation
