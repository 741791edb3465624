"""Names that the Pallas templates bind or read, and that nothing from a spec may have."""

from __future__ import annotations

_NAMES = """
    functools math warnings pairwise NamedTuple NoReturn jax jnp lax pl pltpu INTERPRET CHIP PRECISION LANES LOWEST
    LOG2E LN2 VMEM TILES Size Tile Config B Hq Hkv Sq Sk D Dv BQ BK int float bool str tuple list dict set len range
    sum min max abs any all zip isinstance getattr hasattr type enumerate sorted reversed map None True False self x a b
    q k v out lse den delta exact d_out d_lse dq dk dv scale seed size tile config floats data numbers results cut
    queries keys unroll steps forward dkdv interpret vmem batch head held step kv_head walked q0 q1 k0 k1 q_idx k_idx
    height width n_held n_queries n_keys n_tiles qk weight p g ds dp slope_p keep allowed masked at total merged empty
    share rescale new_max old_max row_max row_sum row_lse row_ref inv_den ref threshold inv_keep contribution start
    attend finish full partial some every block at_b at_h at_q at_k at_distance group gradients more sums name
    return_lse dropout_seed x key words low high dtype row acc_s max_s sum_s q_s k_s dq_s dk_s dv_s q_ref k_ref
    v_ref out_ref lse_ref den_ref delta_ref d_out_ref dq_ref dk_ref dv_ref seed_ref scale_ref saved cotangents visited
    ValueError message dk_out first last wide wide_v room itemsize chip kernel length whole own held_block print
    extra cells_ref keep_s fused of_dq backward w i j n m r of_pair
    rest saves returns_lse counts whole walked rolled tail tails seen added product clear STRAIGHT
    WIDE PIECE AHEAD both across pieces number column rows columns chunk scores values absorb ahead ones tiles
    check holds wrong map
    steps several acc finish_all top_query top_key compute spread call arrays inside outside
    keeps
"""

_RUNS = {f"{kind}{n}_{end}" for kind in ("any", "full") for n in ("", 0, 1, 2, 3) for end in ("lo", "hi")}
_PARTS = {f"part{i}{j}_{end}" for i in range(4) for j in range(5) for end in ("lo", "hi")}

RESERVED = (
    frozenset(_NAMES.split())
    | _RUNS
    | _PARTS
    | {
        f"{side}test{n}{end}"
        for n in range(64)
        for side in ("", "key_", "query_")
        for end in ("", "_any_lo", "_any_hi", "_all_lo", "_all_hi", "_ref")
    }
)
"""`tests/unit/emit` holds this against generated modules."""
