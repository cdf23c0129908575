"""Commands that are generated, judged by the gate, and run by a real bash to see what they do.

Two laws. What rules allow runs no program but those the rules name, and reading programs write
nothing. What runs a denied program, in whatever spelling, does not pass under `--approval all`.
"""
