"""User interfaces of a conversation: the terminal, and editors via the Agent Client Protocol."""
