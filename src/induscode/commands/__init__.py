"""The commands of `indus`, one file for each group."""
