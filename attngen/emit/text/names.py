"""Names in generated code: hints made unique, never a keyword, never a name that the templates use.

A spec is untrusted text: names reach generated code only through here, and a hint that is not a plain identifier is
refused as an internal error.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

from attngen.errors import InternalError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_TEMPLATE_NAMES = """
    turns turned wave rest rest_ptr precise PRECISE learned rounded math torch triton tl Tensor LOG2E LN2 TILES
    PRECISION float int bool len range tuple str min max isinstance all any zip list dict set sum abs print type
    None True False self cls q k v out lse den d_out d_lse dq dk dv scale seed delta acc row_max row_sum row_lse
    row_ref inv_den p x weight g dp ds keep allowed head batch kv_head group tile tiles first last i t step
    count start stop q_ptr k_ptr v_ptr out_ptr lse_ptr den_ptr d_out_ptr d_lse_ptr dq_ptr dk_ptr dv_ptr delta_ptr
    seed_ptr q_idx k_idx q_safe k_safe q0 q1 k0 k1 qk q_rows k_rows v_rows d_out_rows head_rows TMA tensor q_tile
    k_tile v_tile d_out_tile B Hq Hkv Sq Sk D Dv BQ BK BLOCK_D BLOCK_DV MASKED ALIGN pid rows cols n_tiles heads
    q_stride_b q_stride_h q_stride_s k_stride_b k_stride_h k_stride_s v_stride_b v_stride_h v_stride_s new_max shift
    rescale drop inv_keep threshold empty total merged sign context ctx device dtype config grid needed full partial
    piece any_lo any_hi full_lo full_hi return_lse dropout_seed slope_p columns column contribution ref extra w log2
    TensorDescriptor arguments sizes values index cells cell side above below largest unit per_unit MEASURE visited
    offset query_tile key_tile row_in_tile diagonal skewed query_tiles key_tiles distances exists at at_b at_h at_q
    at_k at_distance n_key_tiles n_query_tiles member row align strides tma mask FAST REGISTERS natural_lse
    scaled_lse_ptr square near least most offsets stages warps dq_BQ dq_BK dq_stages dq_warps inputs output name
    stride NoReturn TILE inside value gl gluon mbarrier fence_async_shared warpgroup_mma warpgroup_mma_wait hopper
    queue apart part spare together schedule registers pipelined item n_work n_steps notes turn round stage phase
    v_stage v_phase v0 masked like q_desc k_desc v_desc out_desc q_tiles k_tiles v_tiles out_tiles out_tile q_ready
    k_ready k_free v_ready v_free queue_ptr no_scores qk_layout acc_layout weight_layout rows_layout acc_rows
    qk_token acc_token out_row out_col scaled functools ready attend learning options constants
    compiled descriptors descriptor kind fields found layout key params backward known own PART PARTS OUT_APART
    PIPELINED Q_COLS ROWS SCHEDULE SPARE STAGES HOPPER again block d_out_desc d_out_ready d_out_tiles delta_tiles
    dk_desc dk_layout dk_token dp_token dq_layout dq_parts dq_parts_ptr dq_token dv_desc dv_layout dv_token
    first_before held here lse_tile lse_tiles met n_parts no_dq no_pairs one pair_layout parts slopes dk_place
    dk_tiles joins met_ptr note_ready stop_before turn_passed turn_ready turns_ptr HOPPER_BACKWARD DS_STORED
    BACKWARDS DS_STAGES HELD back backwards ds_free less_delta order row_delta turn_added warpgroup_mma_init
    EARLY FIRST FREE THREADS WARPS each ds_half number TURNS WIDE HALF ahead by_keys by_rows early Q_FREE D_OUT_FREE
    HANDED TAKEN READ K_FREE V_FREE ORDER ORDERED SHARE COUNT ordered part_ptr ends lists_ptr own_first
    own_stop ds_layout ds_tiles dv_place half has_d_lse high k_half kept low pairs pieces wide n_full n_walked share
    parts_ptr PIECES part_max part_sum col merging SPLIT whole slots programs counts busy most_rows
    most_keys area longest there merge before chunk collect lists others starts stops walk walks walks_ptr AHEAD
    COLS K_STAGES V_STAGES HOPPER_APART dq_desc handed k_place p_layout place_layout plain v_place place shape
    wanted value_stages alone fit fits run test driver counters counters_ptr n_counters stream sums
    terms terms_desc terms_ptr terms_tiles used usual begin end slot no_ds theirs in_turn Q_EARLY counts_ptr
    n_found n_heads n_lists check holds wrong
    call config work results q_ring k_ring v_ring namedtuple
    state held strides tiling place extremes least_ptr most_ptr base factor UNSPECIALIZED
    forward_ad functorch wrapped hidden number learns apart v_layout
"""

# The bounds of tile ranges (`emit.tile_code`) and the answers of data tests (`emit.kernel_code`).
_RUNS = [f"{kind}{n}_{end}" for kind in ("any", "full") for n in range(4) for end in ("lo", "hi")]
_PARTS = [f"part{i}{j}_{end}" for i in range(4) for j in range(5) for end in ("lo", "hi")]
_OWN = [f"own_{name}" for name in ("any_lo", "any_hi", "full_lo", "full_hi", *_RUNS, *_PARTS)]
_ENDS = ("any_lo", "any_hi", "all_lo", "all_hi", "least", "most", "tile", "least_ptr", "most_ptr")
_TESTS = [f"{side}test{n}_{end}" for side in ("", "key_", "query_") for n in range(64) for end in _ENDS]
_EXTREMES = [f"{side}_test{n}{end}" for side in ("key", "query") for n in range(64) for end in ("", "_ptr")]

RESERVED = frozenset([*_TEMPLATE_NAMES.split(), *_RUNS, *_PARTS, *_OWN, *_TESTS, *_EXTREMES])
"""Every name that the Triton templates bind or read. `tests/unit/emit` holds this against generated modules."""


class Names:
    """Hands out identifiers, each once."""

    def __init__(self, taken: frozenset[str] = RESERVED):
        self._taken = set(taken)

    def fresh(self, hint: str, derived: Callable[[str], tuple[str, ...]] = lambda name: ()) -> str:
        """`hint`, or `hint_2`, `hint_3`, … if it, or a name that the generated code derives from it, is taken."""
        if not _IDENTIFIER.match(hint):
            raise InternalError(f"{hint!r} is no identifier")
        hint = hint.strip("_") or "value"
        if keyword.iskeyword(hint) or keyword.issoftkeyword(hint) or hint[0].isdigit():
            hint = f"{hint}_" if not hint[0].isdigit() else f"n{hint}"
        name, number = hint, 1
        while not self._taken.isdisjoint((name, *derived(name))):
            number += 1
            name = f"{hint}_{number}"
        self.take(name, *derived(name))
        return name

    def take(self, *names: str) -> None:
        """These are never handed out from now on."""
        self._taken.update(names)

    def copy(self) -> Names:
        """Another hand, which starts from what this one has given away."""
        return Names(frozenset(self._taken))
