"""`indus acp`: a session in an editor, by the Agent Client Protocol (https://agentclientprotocol.com) over stdio."""
