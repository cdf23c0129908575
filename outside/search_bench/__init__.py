"""Tool search judged by public sets of tools and questions, beside the index of another product."""
