"""What the own part of a generated file calls on the host."""

from .arguments import (
    element_at as element_at,
    first_broken as first_broken,
    gathered as gathered,
    is_bool as is_bool,
    is_int as is_int,
    is_number as is_number,
    list_holds as list_holds,
    readable as readable,
    spread as spread,
    stand_in as stand_in,
)
from .attention import Attention as Attention, Param as Param
from .devices import (
    add_queue as add_queue,
    alignment as alignment,
    ceil as ceil,
    chip as chip,
    has_tma as has_tma,
    multiprocessors as multiprocessors,
    padded as padded,
    register_limit as register_limit,
    tiles as tiles,
)
from .hopper import (
    HopperLaunch as HopperLaunch,
    equal_share as equal_share,
    fetched_bytes as fetched_bytes,
    fetches_pairs as fetches_pairs,
    hopper_columns as hopper_columns,
    hopper_row as hopper_row,
    listed_row as listed_row,
)
from .launch import Launch as Launch
from .narrow import NarrowAttention as NarrowAttention, NarrowLaunch as NarrowLaunch, turn_values as turn_values
from .pieces import PiecePlace as PiecePlace, Pieces as Pieces, Visits as Visits
from .ragged import slots as slots
from .sequences import Sequences as Sequences, refuse_gradient as refuse_gradient, sequence_tiles as sequence_tiles
from .short_queries import split_pieces as split_pieces, split_tile as split_tile
from .tables import rows_by_dims as rows_by_dims, tiles_by_chip as tiles_by_chip
