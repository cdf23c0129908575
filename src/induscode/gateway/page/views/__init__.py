"""The views of the page: one module each, from the values of a gateway to HTML."""
