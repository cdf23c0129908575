"""The adapters, judged by the frameworks themselves with a scripted model."""
