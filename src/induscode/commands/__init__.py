"""The commands of `indus`, one file for each group."""

COMPLETE_VARIABLE = "_INDUS_COMPLETE"
"""Set by the completion script of a shell when it asks how a line may go on."""
