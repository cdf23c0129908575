"""Commands that go on in the background: one table for a session."""
