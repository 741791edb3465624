"""What a BlockMask allows, as a function of one pair.

Takes a BlockMask; returns its mask_mod where that allows what its blocks allow, as `create_block_mask` makes them, else
one that looks the pair's block up, too: FlexAttention visits no other block, and asks mask_mod in blocks that are not
full alone.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask, noop_mask

from attngen.flex.enclosed import Modification

_MOST_PAIRS = 2**25
"""That are looked at in one piece."""
_known: WeakKeyDictionary[BlockMask, tuple[Modification, Modification]] = WeakKeyDictionary()
"""By block mask, its mask_mod when it was looked at, and what it allows."""


def mask_of(block_mask: BlockMask) -> Modification:
    """All pairs of a block mask are looked at once."""
    mask_mod, found = _known.get(block_mask, (None, None))
    if found is None or mask_mod is not block_mask.mask_mod:
        found = block_mask.mask_mod if _agree(block_mask) else _with_blocks(block_mask)
        _known[block_mask] = block_mask.mask_mod, found
    return found


def _full(block_mask: BlockMask) -> Tensor | None:
    """The blocks in which mask_mod is not asked, as bools; (B, H, rows, columns)."""
    if block_mask.full_kv_num_blocks is None or block_mask.full_kv_indices is None:
        return None
    counts, columns = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    return BlockMask.from_kv_blocks(counts, columns, BLOCK_SIZE=block_mask.BLOCK_SIZE).to_dense().bool()


def _agree(block_mask: BlockMask) -> bool:
    """Whether mask_mod allows no pair outside of the blocks, and all pairs of those that are full."""
    if block_mask.mask_mod is noop_mask:
        return False
    visited, full = block_mask.to_dense().bool(), _full(block_mask)
    (rows, columns), (n_rows, n_columns) = block_mask.BLOCK_SIZE, block_mask.seq_lengths
    batches, heads = visited.shape[:2]
    together = max(1, _MOST_PAIRS // (batches * heads * rows * n_columns))
    for first in range(0, visited.shape[2], together):
        begin, count = first * rows, min(together * rows, n_rows - first * rows)
        allowed = create_mask(_moved(block_mask.mask_mod, begin), batches, heads, count, n_columns, visited.device)
        here = slice(first, first + together)
        if (allowed & ~_pairs(visited[:, :, here], rows, columns, allowed)).any():
            return False
        if full is not None and (_pairs(full[:, :, here], rows, columns, allowed) & ~allowed).any():
            return False
    return True


def _pairs(blocks: Tensor, rows: int, columns: int, like: Tensor) -> Tensor:
    """Which pairs are in blocks; those beyond the sequences' ends are none."""
    wide = blocks.repeat_interleave(rows, 2).repeat_interleave(columns, 3)
    return wide[:, :, : like.shape[2], : like.shape[3]]


def _moved(mask_mod: Modification, rows: int) -> Modification:
    def moved(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return mask_mod(b, h, q_idx + rows, kv_idx)

    return moved


def _with_blocks(block_mask: BlockMask) -> Modification:
    mask_mod, (rows, columns) = block_mask.mask_mod, block_mask.BLOCK_SIZE
    blocks, full_blocks = block_mask.to_dense().bool(), _full(block_mask)
    many_batches, many_heads = (size > 1 for size in blocks.shape[:2])

    def in_blocks(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        at = b if many_batches else 0, h if many_heads else 0, q_idx // rows, kv_idx // columns
        if mask_mod is noop_mask:
            return blocks[at]
        allowed = blocks[at] & mask_mod(b, h, q_idx, kv_idx)
        return allowed if full_blocks is None else full_blocks[at] | allowed

    return in_blocks
