"""Text to syntax tree and back: `ast` (node types), `parser`, `formatter`; `tables` alone imports lark."""
