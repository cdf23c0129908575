"""Code mode: the tool `run_code`, which runs a model's script that calls the other tools as functions."""
