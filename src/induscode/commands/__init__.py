"""The commands of `indus`, one module or package each."""

COMPLETE_VARIABLE = "_INDUS_COMPLETE"
"""Set by a shell's completion script when it requests completions."""
