"""Masks with holes in JAX: lists of tiles, on a TPU in scalar memory, beside attention with the mask pair by pair.

Pallas' interpreter runs the kernels. What results are compared with takes the masks of this file, and no tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attngen
from attngen.runtime.loader import execute

pytestmark = pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
TILE = 16
S, HEADS, KV_HEADS = 70, 4, 2
AT = np.arange(S)
ROLLOUTS = """\
attention rollouts
param first: int[B, Sk]
param last: int[B, Sk]
mask = causal and first[b, k] <= first[b, q] < last[b, k]
assume Sq == Sk
"""
NEAR = """\
attention near
param x: int[Sk]
param y: int[Sk]
param bias: f32[Hq, Sq, Sk]
score = qk * scale + bias[h, q, k]
mask = abs(x[q] - x[k]) <= 2 and abs(y[q] - y[k]) <= 3
assume Sq == Sk
"""
FOURTH = "attention fourth\nmask = causal and (q - k) % 40 == 0\n"
ANCESTORS = "attention ancestors\nparam anc: bool[B, Hq, Sq, Sk]\nmask = anc[b, h, q, k]\n"
BY_DISTANCE = "attention by_distance\nparam t: bool[Hq, M]\nmask = t[h, q - k + Sk]\n"
BLOCKS = "attention blocks\nparam ch: bool[B, Hkv, M, N]\nmask = causal and ch[b, hkv, q // 16, k // 16]\n"
LISTS = "attention lists\nparam ch: int[B, Hkv, M, L]\nmask = causal and k // 16 in ch[b, hkv, q // 16]\n"


def drawn() -> np.random.Generator:
    return np.random.default_rng(1)


def branches(shuffled: bool) -> dict[str, Any]:
    own = np.sort(drawn().integers(0, 5, (2, S)))
    own = own[:, drawn().permutation(S)] if shuffled else own
    return {"first": own.astype(np.int32), "last": np.where(own == 0, 5, own + 1).astype(np.int32)}


def places() -> dict[str, Any]:
    x, y = np.sort(drawn().integers(0, 12, S)), drawn().integers(0, 9, S)
    bias = drawn().standard_normal((HEADS, S, S), np.float32)
    return {"x": x.astype(np.int32), "y": y.astype(np.int32), "bias": bias}


def ancestors() -> np.ndarray[Any, Any]:
    """Few; but all of the first positions and of the last, whose tile the end of the sequence cuts."""
    seen = drawn().random((2, HEADS, S, S)) < 0.002
    seen[:, :, :TILE, 64:] = seen[:, :, 64:, :TILE] = True
    return seen


def distances() -> np.ndarray[Any, Any]:
    """A few, of each head its own."""
    seen = np.zeros((HEADS, 2 * S), bool)
    seen[np.arange(HEADS)[:, None], S + np.array([[0, 3], [-20, 21], [40, 41], [-60, 30]])] = True
    return seen


CASES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "rollouts": (ROLLOUTS, lambda: branches(shuffled=False)),
    "a tree, unsorted": (ROLLOUTS, lambda: branches(shuffled=True)),
    "neighbours": (NEAR, places),
    "every fortieth": (FOURTH, dict),
    "ancestors": (ANCESTORS, lambda: {"anc": ancestors()}),
    "by distance": (BY_DISTANCE, lambda: {"t": distances()}),
    "blocks": (BLOCKS, lambda: {"ch": drawn().random((2, KV_HEADS, 5, 5)) < 0.4}),
    "lists": (LISTS, lambda: {"ch": drawn().integers(-1, 5, (2, KV_HEADS, 5, 2)).astype(np.int32)}),
}


def allowed(name: str, given: dict[str, Any]) -> np.ndarray[Any, Any]:
    """(B, Hq, Sq, Sk), by hand."""
    q, k = AT[:, None], AT
    match name:
        case "rollouts" | "a tree, unsorted":
            first, last = given["first"][:, None], given["last"][:, None]
            seen = (q >= k) & (first[..., None, :] <= first[..., :, None]) & (first[..., :, None] < last[..., None, :])
        case "neighbours":
            seen = (abs(given["x"][:, None] - given["x"]) <= 2) & (abs(given["y"][:, None] - given["y"]) <= 3)
        case "every fortieth":
            seen = (q >= k) & ((q - k) % 40 == 0)
        case "ancestors":
            seen = given["anc"]
        case "by distance":
            seen = given["t"][:, q - k + S]
        case "blocks":
            seen = (q >= k) & np.repeat(given["ch"], HEADS // KV_HEADS, 1)[:, :, q // 16, k // 16]
        case _:
            chosen = np.repeat(given["ch"], HEADS // KV_HEADS, 1)[:, :, AT // 16]
            seen = (q >= k) & (chosen[..., None, :] == (k // 16)[:, None]).any(-1)
    return np.broadcast_to(seen, (2, HEADS, S, S))


@functools.cache
def source(text: str, target: str) -> str:
    return attngen.compile(text, target, tile=(TILE, TILE)).source


def module(text: str, target: str = "pallas", *, streamed: bool = False, room: int = 2**18) -> Any:
    found: Any = execute(source(text, target), "made")
    if target == "pallas":
        found.VMEM = {**found.VMEM, "cpu": 0} if streamed else found.VMEM
        found.LISTS = room
    return found


def operands() -> list[np.ndarray[Any, Any]]:
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return [np.random.default_rng(n).standard_normal((2, S, h, 16), np.float32) for n, h in enumerate(heads)]


def results(made: Any, text: str, given: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """out, dQ, dK, dV and the gradients of floats."""
    q, k, v, d_out = operands()
    function = getattr(made, text.split()[1])
    floats = [n for n, x in given.items() if x.dtype == np.float32]

    def attend(q: Any, k: Any, v: Any, *learnt: Any) -> Any:
        return function(q, k, v, **{**given, **dict(zip(floats, learnt, strict=True))})

    out, pullback = jax.vjp(attend, q, k, v, *(given[n] for n in floats))
    return [np.asarray(x) for x in (out, *pullback(jnp.asarray(d_out)))]


def same(found: list[np.ndarray[Any, Any]], wanted: list[np.ndarray[Any, Any]]) -> bool:
    return all(np.allclose(a, b, rtol=2e-5, atol=2e-5) for a, b in zip(found, wanted, strict=True))


@functools.cache
def wanted(name: str) -> list[np.ndarray[Any, Any]]:
    given = CASES[name][1]()
    *qkv, d_out = operands()
    seen, bias = allowed(name, given), [x for x in given.values() if x.dtype == np.float32]

    def attend(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        k, v = (jnp.repeat(x, HEADS // KV_HEADS, 2) for x in (k, v))
        score = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest") / 4 + sum(bias)
        weight = jnp.where(seen, jnp.exp(score), 0.0)
        total = weight.sum(-1, keepdims=True)
        return jnp.einsum("bhqk,bkhd->bqhd", weight / jnp.where(total == 0, 1.0, total), v, precision="highest")

    out, pullback = jax.vjp(attend, *qkv, *bias)
    return [np.asarray(x) for x in (out, *pullback(jnp.asarray(d_out)))]


FORMS: dict[str, dict[str, Any]] = {
    "resident": {},
    "streamed": {"streamed": True},
    "few lists": {"room": 4 * HEADS * 7 * 2},
    "one list": {"room": 64},
    "plain JAX": {"target": "jax"},
}


@pytest.mark.whole(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_every_tile(name: str, form: str) -> None:
    text, given = CASES[name]
    assert same(results(module(text, **FORMS[form]), text, given()), wanted(name))


def listed(made: Any, name: str, axis: str) -> tuple[np.ndarray[Any, Any], Any, tuple[int, int]]:
    """(list, 2 + tiles) of an axis; the number of a tile's list; how many tiles are held and walked."""
    text, given = CASES[name]
    seen: list[tuple[Any, Any, np.ndarray[Any, Any]]] = []
    original = getattr(made, f"_{axis}_map")

    def kept(size: Any, tile: Any, *rest: Any) -> Any:
        found = original(size, tile, *rest)
        seen.append((size, tile, np.asarray(found)))
        return found

    setattr(made, f"_{axis}_map", kept)
    results(made, text, given())
    size, tile, lists = seen[-1]
    n = -(-S // TILE)
    number = functools.partial(getattr(made, f"_{axis}_list"), size=size, tile=tile)
    return lists.reshape(-1, n + 2), number, (n, n)


@pytest.mark.parametrize("axis", ["key", "query"])
@pytest.mark.parametrize("name", CASES)
def test_lists_name_each_tile_that_holds_a_pair_once(name: str, axis: str) -> None:
    """Those of chosen blocks and of pairs no other; whole tiles come first, and hold no forbidden pair."""
    made = module(CASES[name][0])
    lists, number, (n_held, n_walked) = listed(made, name, axis)
    pairs = allowed(name, CASES[name][1]())
    if axis == "query":
        pairs = pairs.swapaxes(2, 3)
    visited = holding = 0
    for b in range(2):
        for h in range(HEADS):
            for held in range(n_held):
                whole, count, *tiles = lists[int(number(b, h, held))].tolist()
                assert sorted(tiles) == list(range(n_walked)) and 0 <= whole <= count <= n_walked
                rows = pairs[b, h, held * TILE : held * TILE + TILE]
                cells = [rows[:, t * TILE : t * TILE + TILE] for t in range(n_walked)]
                holds = {t for t, cell in enumerate(cells) if cell.any()}
                assert holds <= set(tiles[:count])
                assert all(cells[t].all() and cells[t].shape[1] == TILE for t in tiles[:whole])
                visited, holding = visited + count, holding + len(holds)
    assert visited == holding or name in ("neighbours", "a tree, unsorted", "every fortieth", "by distance")
    assert visited < 0.8 * 2 * HEADS * n_held * n_walked or name == "a tree, unsorted"


@pytest.mark.whole(2)
def test_neighbours_share_lists_where_scalar_memory_is_short() -> None:
    made = module(ROLLOUTS, room=2 * 4 * 3 * 7)
    assert made._room(2, 1, 5, 5) == (2, 1, 3, 1)  # (batches, heads, lists, bits): five tiles, two of them to a list
    assert module(ROLLOUTS)._room(2, 1, 5, 5) == (2, 1, 5, 0)
    assert module(ROLLOUTS, room=28 * 5)._room(300, 1, 5, 5) == (1, 1, 5, 0)  # batches share them
    assert module(ROLLOUTS, room=28 * 5)._room(300, 6, 5, 5) == (1, 1, 5, 0)  # and heads
    assert module(ROLLOUTS)._room("b", 6, 5, 5) == (1, 6, 5, 0)  # of symbolic batches nobody knows how many
    lists, number, _ = listed(made, "rollouts", "key")
    assert len(lists) == 6 and [int(number(1, 0, t)) for t in range(5)] == [3, 3, 4, 4, 5]


FAULTS = {
    "a list begins one place late": ("listed + 2 + ", "listed + 3 + "),
    "a tile's own number where lists are shared": ("tile = held >> near", "tile = held"),
    "tiles that need the mask are left out": ("(kinds < 2).sum(-1)", "(kinds < 1).sum(-1)"),
    "batches that share lists have none's": ("can.any(axis, keepdims=True)", "can.all(axis, keepdims=True)"),
    "distances the other way": ("(n_queries)[::-1, None] * tile.queries", "(n_queries)[:, None] * tile.queries"),
    "plain JAX: distances the other way": ("(n_queries)[::-1, None] * TILE_Q", "(n_queries)[:, None] * TILE_Q"),
    "no tile needs the mask": ("jnp.where(must, 0, 1)", "0"),
    "the greatest for the least": ("[_for_heads(end, heads) for end in (x.min((3, 5)), x.max((3, 5)))]",
                                   "[_for_heads(end, heads) for end in (x.max((3, 5)), x.min((3, 5)))]"),
    "the last tile is taken for whole": ("(jnp.arange(n_walked) < n_walked - 1) | (cut == 0)", "True"),
    "the other axis": ("_kinds(can.mT, must.mT, ", "_kinds(can, must, "),
    "plain JAX: a list begins one place late": ("listed[2 + at]", "listed[3 + at]"),
    "plain JAX: what one head needs": ("shape).any((0, 1)), jnp", "shape).all((0, 1)), jnp"),
    "plain JAX: what one head needs no mask for": ("shape).all((0, 1))", "shape).any((0, 1))"),
    "plain JAX: the other axis": ("(x.T for x in _tile_test(size, floats, data))", "_tile_test(size, floats, data)"),
    "all heads have the first one's": ("x[:, :: own // heads] if own > heads else x", "x[:, :1] if own > 1 else x"),
}  # fmt: skip


@pytest.mark.whole(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_list_is_seen(fault: str) -> None:
    old, new = FAULTS[fault]
    seen = False
    for name in ("ancestors", "blocks", "by distance", "rollouts"):
        text, given = CASES[name]
        for form in FORMS.values():
            own = source(text, form.get("target", "pallas"))
            if old in own:
                made: Any = execute(own.replace(old, new), "edited")
                made.VMEM = {**made.VMEM, "cpu": 0} if form.get("streamed") else getattr(made, "VMEM", {})
                made.LISTS = form.get("room", 2**18)
                seen = seen or not same(results(made, text, given()), wanted(name))
    assert seen


def test_vmap_gives_each_its_own_lists() -> None:
    made, given = module(ROLLOUTS), branches(shuffled=False)
    q, k, v, _ = operands()
    one = made.rollouts(q, k, v, **given)
    other = made.rollouts(q, k, v, first=given["first"][::-1], last=given["last"][::-1])

    def attend(first: Any, last: Any) -> Any:
        return made.rollouts(q, k, v, first=first, last=last)

    both = jax.vmap(attend)(*(jnp.stack([x, x[::-1]]) for x in given.values()))
    np.testing.assert_allclose(both, np.stack([one, other]), rtol=2e-5, atol=2e-5)
    assert not np.allclose(one, other)


WITHIN = {
    "a sum's period": "mask = (q + k) % 48 // 16 != 1\n",
    "quotients below 0": "param x: int[Sk]\nassume Sq == Sk\nmask = (x[q] // 4 + x[k] // 4) % 3 == 1\n",
    "ints at the ends": "param x: int[Sk]\nassume Sq == Sk\nmask = abs(x[q] - x[k]) <= 8\n",
}


@pytest.mark.whole(2)
@pytest.mark.parametrize("target", ["pallas", "jax"])
@pytest.mark.parametrize("name", WITHIN)
def test_extremes_are_put_together_in_32_bits(name: str, target: str) -> None:
    """Divisions round down, and what leaves 32 bits stays at their end, as in the mask."""
    x = drawn().integers(-40, 40, S)
    x[::7], x[3::7] = 2**31 - 1 - x[::7] % 9, -(2**31) + x[3::7] % 9
    given = {"x": x.astype(np.int32)} if "param" in WITHIN[name] else {}
    q, k = (x[:, None], x) if given else (AT[:, None], AT)
    match name:
        case "a sum's period":
            seen = (q + k) % 48 // 16 != 1
        case "quotients below 0":
            seen = (q // 4 + k // 4) % 3 == 1
        case _:
            seen = abs(q - k) <= 8
    text = "attention within\n" + WITHIN[name]
    (out, *_) = results(module(text, target), text, given)
    *qkv, _ = operands()
    keys, values = (np.repeat(t, HEADS // KV_HEADS, 2) for t in qkv[1:])
    weight = np.exp(np.einsum("bqhd,bkhd->bhqk", qkv[0], keys) / 4) * seen
    total = weight.sum(-1, keepdims=True)
    wanted = np.einsum("bhqk,bkhd->bqhd", weight / np.where(total == 0, 1, total), values)
    np.testing.assert_allclose(out, wanted, rtol=2e-4, atol=2e-5)
