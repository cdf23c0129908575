"""Clients that others wrote, against `indus serve`."""
