"""From what was asked for to what is there: the deck, its servers, and who closes them."""
