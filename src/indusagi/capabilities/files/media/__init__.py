"""Images, PDF files and notebooks."""
