"""Complete runs: a folder each, with the recipe file, what belongs to it, and its README with measured numbers."""
