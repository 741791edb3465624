"""Text to syntax tree and back: `ast` (node types), `parser` (the only lark import), `formatter`."""
