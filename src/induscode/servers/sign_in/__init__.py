"""Interactive sign-in to servers, with a browser, another device or a pasted address, and sign-out."""
