"""Enrolment of MCP servers: their configuration, the consent to it, their tools in the deck."""
