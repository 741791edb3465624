"""What the own part of a generated file calls on the host."""

from .arguments import (
    element_at as element_at,
)
from .arguments import (
    first_broken as first_broken,
)
from .arguments import (
    gathered as gathered,
)
from .arguments import (
    is_bool as is_bool,
)
from .arguments import (
    is_int as is_int,
)
from .arguments import (
    is_number as is_number,
)
from .arguments import (
    readable as readable,
)
from .arguments import (
    spread as spread,
)
from .arguments import (
    stand_in as stand_in,
)
from .attention import Attention as Attention
from .attention import Param as Param
from .devices import (
    add_queue as add_queue,
)
from .devices import (
    alignment as alignment,
)
from .devices import (
    ceil as ceil,
)
from .devices import (
    chip as chip,
)
from .devices import (
    has_tma as has_tma,
)
from .devices import (
    multiprocessors as multiprocessors,
)
from .devices import (
    padded as padded,
)
from .devices import (
    register_limit as register_limit,
)
from .devices import (
    tiles as tiles,
)
from .hopper import (
    HopperLaunch as HopperLaunch,
)
from .hopper import (
    equal_share as equal_share,
)
from .hopper import (
    fetched_bytes as fetched_bytes,
)
from .hopper import (
    fetches_pairs as fetches_pairs,
)
from .hopper import (
    hopper_columns as hopper_columns,
)
from .hopper import (
    hopper_row as hopper_row,
)
from .hopper import (
    listed_row as listed_row,
)
from .launch import Launch as Launch
from .sequences import Sequences as Sequences
from .sequences import refuse_gradient as refuse_gradient
from .sequences import sequence_tiles as sequence_tiles
from .short_queries import split_pieces as split_pieces
from .short_queries import split_tile as split_tile
from .tables import rows_by_dims as rows_by_dims
from .tables import tiles_by_chip as tiles_by_chip
