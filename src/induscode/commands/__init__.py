"""The commands of `indus`, one module or package each."""

COMPLETE_VARIABLE = "_INDUS_COMPLETE"
"""Set by the completion script of a shell when it requests completions."""
