"""Approvals: calls at the gateway that wait for a person's yes, and everything that asks, answers and spends it."""
