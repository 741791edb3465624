"""Measuring attention on a GPU beside other implementations: one process, the same inputs, turn about.

`clock` times one callable, `replay` makes one of a CUDA graph, `race` times several in turns, `contenders` builds the
peers, `run` measures a whole spec. Its modules import torch; nothing else of attngen does so by importing this room.
"""
