"""The tensor axis: layers cut by their own declarations, tokens in slices between them."""
