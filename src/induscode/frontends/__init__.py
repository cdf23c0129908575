"""Where a user meets a conversation: the terminal, and an editor by the Agent Client Protocol."""
