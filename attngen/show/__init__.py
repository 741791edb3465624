"""Pictures of masks and of what the kernel does with their tiles.

`survey` (what is to be seen), `text` (for terminals), `image` (PNG and SVG).
"""
