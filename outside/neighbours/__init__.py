"""The wheel in clean environments: alone, and next to libraries that need one of the two SDKs."""
