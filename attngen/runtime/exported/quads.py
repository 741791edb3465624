"""8-bit floats in the kernels of compute capability 9.0: weights in words of four, and values in their order.

A thread has two neighbouring scores of every eight keys of a row. The product of weights and values wants four
neighbours of every sixteen from it. So a word takes two pairs as they are, and the values stand in that order
(`turn_values_kernel`): no number goes to another thread.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# Gluon has no types.

import triton
import triton.language as tl

from .gluon import gl, gluon
from .rows import block, load, of_head


@gluon.jit
def words_of_lagging(pairs):
    """(64, keys / 16, 4): the words that `lagging_weights` returns, one in the place of every two pairs."""
    return pairs.reshape([64, pairs.shape[1] // 8, 2, 4]).permute((0, 1, 3, 2)).split()[0]


@gluon.jit
def words_of(weight, RAISED: gl.constexpr):
    """(64, keys / 16, 4): the words of a tile of weights, times 2**RAISED."""
    x = (weight * (2.0**RAISED)).reshape([64, weight.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    even, odd = x.split()
    first, third = even.split()
    second, fourth = odd.split()
    asm: gl.constexpr = (
        "{ .reg .b16 a, b; cvt.rn.satfinite.e4m3x2.f32 a, $2, $1; cvt.rn.satfinite.e4m3x2.f32 b, $4, $3; "
        "mov.b32 $0, {a, b}; }"
    )
    return gl.inline_asm_elementwise(asm, "=r,f,f,f,f", [first, second, third, fourth], gl.int32, True, 1)


@gluon.jit
def byte_of(words, NUMBER: gl.constexpr):
    """One of the four numbers of each word."""
    return (words >> (8 * NUMBER)).to(gl.int8).to(gl.float8e4nv, bitcast=True)


@gluon.jit
def as_operand(words, layout: gl.constexpr):
    """The words as a tile of weights, (64, keys), in the order of turned values."""
    quads = gl.join(gl.join(byte_of(words, 0), byte_of(words, 1)), gl.join(byte_of(words, 2), byte_of(words, 3)))
    # The last axes count pairs of a word, and numbers of a pair.
    tile = quads.permute((0, 1, 2, 4, 3)).reshape([64, words.shape[1] * 16])
    return gl.convert_layout(tile, layout)


@gluon.jit
def key_at(place):
    """The key whose value stands at this place of turned values, counted from a multiple of 16."""
    return (place & -16) | ((place & 2) << 2) | ((place & 12) >> 1) | (place & 1)


@triton.jit(do_not_specialize=["Hkv", "Sk", "Sk_turned"])
def turn_values_kernel(
    v_ptr, turned_ptr, Hkv, Sk, Sk_turned, v_strides, Dv: tl.constexpr, KEYS: tl.constexpr, ALIGN: tl.constexpr
):
    """Turns a tile of values, so that the keys of a column follow each other, as products of 8-bit floats read them.

    A thread of a product has the weights of the keys 8 j + 2 t + i of sixteen, i and j below 2, and multiplies them by
    what stands at the places 4 t + 2 j + i. Behind the last key are zeros.
    """
    i = tl.program_id(0) // tl.cdiv(Sk_turned, KEYS)
    k0 = tl.program_id(0) % tl.cdiv(Sk_turned, KEYS) * KEYS
    v_rows = of_head(v_ptr, i // Hkv, i % Hkv, v_strides, Sk, ALIGN)
    v = load(v_rows, k0, KEYS, Dv, True)
    cols = tl.arange(0, block(Dv))[:, None]
    keys = k0 + tl.arange(0, KEYS)[None, :]
    turned = tl.permute(tl.reshape(v, [KEYS // 16, 2, 4, 2, block(Dv)]), [4, 0, 2, 1, 3])
    cells = turned_ptr + (tl.cast(i, tl.int64) * Dv + cols) * Sk_turned + keys
    tl.store(cells, tl.reshape(turned, [block(Dv), KEYS]), mask=(cols < Dv) & (keys < Sk_turned))
