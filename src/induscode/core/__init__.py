"""What every part of the product agrees on before a run begins."""
