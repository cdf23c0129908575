"""Code mode: the tool `run_code`, a script of a model that calls the other tools as functions."""
