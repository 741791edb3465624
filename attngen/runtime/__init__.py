"""Runs generated source: `loader` (file cache, import, the interpreter), `aot` (binaries without a GPU)."""
