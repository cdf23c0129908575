"""What the command line comes to: the flags of the table, and the invocation made of them."""

from induscode.launch.flags import FlagGroup as FlagGroup
from induscode.launch.flags import FlagKind as FlagKind
from induscode.launch.flags import FlagSpec as FlagSpec
from induscode.launch.invocation import Invocation as Invocation
