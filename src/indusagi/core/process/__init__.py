"""Child processes, their pipes and their process trees."""
