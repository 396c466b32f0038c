"""What ranks exchange: parts and wholes, sums and axes, counted in bytes and seconds."""
