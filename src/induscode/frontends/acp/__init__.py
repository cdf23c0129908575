"""`indus acp`: a session in an editor via the Agent Client Protocol (https://agentclientprotocol.com) over stdio."""
