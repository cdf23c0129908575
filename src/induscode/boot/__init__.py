"""The boot of a run: its deck, its servers and its ledger."""
