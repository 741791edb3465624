"""PTX that kernels of compute capability 9.0 have inline: the softmax's weights of a tile, and its running products.

A row's reference m is an earlier maximum, and its weights are P = 2^(factor (S - m)). The reference is renewed when a
sum of weights exceeds 2**slack. So most tiles need no maximum, and no product is rescaled for them.
"""

# pyright: reportUntypedFunctionDecorator=false, reportUnknownMemberType=false, reportMissingTypeStubs=false
# Triton has no types.

from typing import Any

import triton


@triton.constexpr_function
def weights_ptx(n: int, half: str, slack: int, rising: bool) -> str:
    """PTX for n pairs of neighbouring scores of a thread, of two rows in turn. Returns the weights in pairs of `half`,
    and for each row its sum, its reference and the factor of its earlier sums, each as the row's first number.

    Weights are computed with the current reference. If a sum exceeds 2**slack or is NaN, the maximum becomes the row's
    reference, and the warp computes the weights again. So it is for a row without a reference yet (-inf).

    `rising`: logits change by `rise` from key to key, so a key's place in the tile is a constant of its exponent, and
    references are logits.

    `half` e4m3: four weights of a row are a word, in the order in which products read keys; every second pair of a row
    has none. Small weights lose digits there, so a new reference lies below the maximum, by as much as a tile of equal
    scores allows.
    """
    narrow = half == "e4m3"
    lead = slack - (n.bit_length() - 1) if narrow else 0
    operands = [[f"${i * n + j}" for j in range(n)] for i in range(10 if rising else 8)]
    weights, sums, refs, before, low, high, was, factor = operands[:8]
    scores = [x for pair in zip(low, high, strict=True) for x in pair]
    row = [j // 2 % 2 for j in range(2 * n)]
    passed = [f"setp.gtu.f32 {p}, {sums[r]}, 0f{127 + slack << 23:08X};" for r, p in enumerate("ab")]
    f = factor[0]
    g, ahead = (operands[8][0], operands[9]) if rising else ("", [])
    place = [f"{j // 4 * 8 + j % 2}.0" for j in range(2 * n)]  # of a key, after the thread's first

    if rising:
        make = [f"sub.f32 m{r}, {ahead[r]}, u{r};" for r in (0, 1)]
        make += [f"fma.rn.f32 w{j}, {g}, {place[j]}, m{row[j]};" for j in range(2 * n)]
        make += [f"fma.rn.f32 w{j}, {x}, {f}, w{j};" for j, x in enumerate(scores)]
    else:
        make = [f"mul.f32 m{r}, u{r}, {f}; neg.f32 m{r}, m{r};" for r in (0, 1)]
        make += [f"fma.rn.f32 w{j}, {x}, {f}, m{row[j]};" for j, x in enumerate(scores)]
    make += [f"ex2.approx.ftz.f32 w{j}, w{j};" for j in range(2 * n)]
    if narrow:
        for j in (j for j in range(n) if j % 4 < 2):
            make += [f"cvt.rn.satfinite.e4m3x2.f32 h{i}, w{2 * (j + 2 * i) + 1}, w{2 * (j + 2 * i)};" for i in (0, 1)]
            make += [f"mov.b32 {weights[j]}, {{h0, h1}};"]
    else:
        make += [f"cvt.rn.{half}x2.f32 {x}, w{2 * j + 1}, w{2 * j};" for j, x in enumerate(weights)]
    make += [f"add.f32 w{j % 4}, w{j % 4}, w{j};" for j in range(4, 2 * n)]
    make += [f"add.f32 {sums[r]}, w{2 * r}, w{2 * r + 1};" for r in (0, 1)]

    refer: list[str] = []
    if lead:  # in the unit of references; a factor may be as small as to have no reciprocal
        in_scores = f"rcp.approx.ftz.f32 d, {f}; mul.f32 d, d, {lead}.0; min.f32 d, d, 1.0e30;"
        refer += [f"mov.f32 d, {lead}.0;" if rising else in_scores]
    for r in (0, 1):
        mine = [j for j, at in enumerate(row) if at == r]
        # Shuffling the old reference keeps the compiler from computing maxima early. Four maxima run side by side.
        refer += [f"shfl.sync.bfly.b32 m{r}, {was[r]}, 0, 31, -1;"]
        refer += [f"add.f32 m{r}, m{r}, d;"] if lead else []
        if rising:
            for k, j in enumerate(mine):
                y = f"w{k}" if k < 4 else "y"
                refer += [f"mul.f32 {y}, {g}, {place[j]}; fma.rn.f32 {y}, {scores[j]}, {f}, {y};"]
                refer += [f"max.f32 w{k % 4}, w{k % 4}, y;"] if k > 3 else []
            refer += ["max.f32 w0, w0, w1; max.f32 w2, w2, w3; max.f32 w0, w0, w2;"]
            refer += [f"add.f32 w0, w0, {ahead[r]}; max.f32 m{r}, m{r}, w0;"]
        else:
            for k, j in enumerate(mine):
                refer += [f"max.f32 w{k % 4}, {f'w{k % 4}' if k > 3 else f'm{r}'}, {scores[j]};"]
            refer += ["max.f32 w0, w0, w1; max.f32 w2, w2, w3;", f"max.f32 m{r}, w0, w2;"]
        refer += [passed[r].replace(" b,", " a,"), f"selp.f32 u{r}, 0f3F800000, 0f00000000, a;"]
        for lanes in (1, 2):  # a row has four threads
            refer += [f"shfl.sync.bfly.b32 y, {x}, {lanes}, 31, -1; max.f32 {x}, {x}, y;" for x in (f"m{r}", f"u{r}")]
        refer += [f"sub.f32 m{r}, m{r}, d;"] if lead else []
        refer += [f"setp.gt.f32 a, u{r}, 0f00000000; selp.f32 {refs[r]}, m{r}, {was[r]}, a;"]
        refer += [f"setp.eq.f32 a, {refs[r]}, 0fFF800000; selp.f32 u{r}, 0f00000000, {refs[r]}, a;"]
        in_logits = "" if rising else f"mul.f32 m{r}, m{r}, {f}; "
        refer += [f"sub.f32 m{r}, {was[r]}, u{r}; {in_logits}ex2.approx.ftz.f32 {before[r]}, m{r};"]

    first = [f"mov.f32 u{r}, {was[r]}; mov.f32 {refs[r]}, u{r}; mov.f32 {before[r]}, 0f3F800000;" for r in (0, 1)]
    first += [f"mov.f32 {sums[r]}, 0f7F800000; setp.eq.f32 {p}, u{r}, 0fFF800000;" for r, p in enumerate("ab")]
    parts = [
        "{ .reg .pred a, b, none, second;",
        f".reg .f32 {'d, ' if lead else ''}y, m<2>, u<2>, w<{2 * n}>;{' .reg .b16 h<2>;' if narrow else ''}",
        *first,
        "setp.ne.u32 second, 0, 0; and.pred a, a, b; vote.sync.all.pred none, a, -1;",
        "again: @none bra.uni anew;",
        *make,
        "@second bra.uni done;",
        *passed,
        "or.pred a, a, b; vote.sync.any.pred a, a, -1; @!a bra.uni done;",
        "anew:",
        *refer,
        # With a constant 1, the assembler would duplicate the code of the weights, so it is shuffled.
        "mov.f32 y, 0f3F800000; shfl.sync.bfly.b32 y, y, 0, 31, -1; setp.ne.f32 second, y, 0f00000000;",
        "not.pred none, second; bra.uni again; done: }",
    ]
    return " ".join(parts)


@triton.constexpr_function
def format_of(dtype: Any) -> str:
    """The number format's name in PTX."""
    return "bf16" if dtype.name == "bf16" else "f16" if dtype.name == "fp16" else "e4m3"


@triton.constexpr_function
def weights_constraints(n: int, n_operands: int) -> str:
    """Constraints: results (early clobber), then operands."""
    return ",".join(["=&r"] * n + ["=&f"] * (3 * n) + ["f"] * (n_operands * n))


@triton.constexpr_function
def multiplied(n: int) -> str:
    """PTX that multiplies n registers in place, unless all factors of the warp are 1. Numbers of a thread's two rows
    alternate every two columns.
    """
    test = f"setp.neu.f32 a, ${2 * n}, 0f3F800000; setp.neu.f32 b, ${2 * n + 2}, 0f3F800000; or.pred a, a, b;"
    products = " ".join(f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n))
    return f"{{ .reg .pred a, b; {test} vote.sync.any.pred a, a, -1; @!a bra.uni past; {products} past: }}"


@triton.constexpr_function
def in_place(n: int) -> str:
    """Constraints: n results, n operands in the same registers, n factors."""
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)
