"""The flow guard under scripted attacks of two servers, and beside benign traces of public task sets."""
