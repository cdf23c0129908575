"""The gate in front of every card: what runs unasked, what a person is asked, what never runs."""
