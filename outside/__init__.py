"""Runs of the bridge against parties that are not ours; no part of the product or of its tests."""
