"""Persistent stores for a session to inject into the deck."""

from induscode.deck.stores.checkpoints import FileCheckpoints as FileCheckpoints
