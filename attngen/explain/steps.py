"""What a derivation is made of: steps, and the quantities that every step speaks of.

`Setting` holds one attention with its plan and the writer of its formulas; `forward` and `backward` take it and give
`Step`s; `rendering` lays them out. A step follows from the ones above it by the identity that it names, and cites the
obligations of the prover that show that identity for this very file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attngen.explain import notation as n
from attngen.explain.formulas import LONG, SYMBOLS, Writer, definitions, named_pair
from attngen.explain.notation import Equation, Formula, Math, Prose
from attngen.ir import build
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Load, Op, Symbol, Type
from attngen.ir.walk import nodes, symbols
from attngen.plan.ints.renaming import planner_takes, with_safe_sizes
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import Form, M
from attngen.prove.verdict import Obligation


@dataclass(frozen=True, slots=True)
class Step:
    """One rung: what is done, its formulas, the identity that makes it equal to the step before, and who shows that."""

    title: str
    says: Prose
    formulas: tuple[Formula, ...]
    identity: Prose
    shown_by: tuple[Obligation, ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """The derivation of one attention's kernels, from the definition down to the gradients of its params."""

    name: str
    notation: Prose
    steps: tuple[Step, ...]


# ---------------------------------------------------------------- quantities

QUERY, KEY, HEAD = n.atom("i"), n.atom("j"), n.atom("h")
ZERO, ONE = n.atom("0"), n.atom("1")
INFINITY = n.atom(r"\infty", "∞")
MINUS_INFINITY = n.total([(True, INFINITY)])
Q_I, K_J, V_J, O_I = n.atom("q_i"), n.atom("k_j"), n.atom("v_j"), n.atom("o_i")
S_IJ, P_IJ, Z_IJ = n.atom("s_{ij}", "s_ij"), n.atom("P_{ij}", "P_ij"), n.atom("z_{ij}", "z_ij")
M_I, M_NEW = n.atom("m_i"), n.atom("m_i'", "m′_i")
SUM_I, SUM_NEW = n.atom(r"\ell_i", "ℓ_i"), n.atom(r"\ell_i'", "ℓ′_i")
ACC_I, ACC_NEW = n.atom("a_i"), n.atom("a_i'", "a′_i")
DEN_I, TOP_I, MU_I = n.atom("Z_i"), n.atom("T_i"), n.atom(r"\mu_i", "μ_i")
T_IJ, X_IJ = n.atom("t_{ij}", "t_ij"), n.atom("x_{ij}", "x_ij")
QK_IJ = n.atom(r"(q_i \cdot k_j)", "(q_i·k_j)")
LSE_I = n.roman("lse", "i")
KEYS_I, QUERIES_J = n.atom("J_i"), n.atom("I_j")
J_IN_KEYS = n.compared(KEY, ("in", KEYS_I))
I_IN_QUERIES = n.compared(QUERY, ("in", QUERIES_J))
SQRT_D = n.root(n.atom("D"))
DELTA_I = n.atom(r"\Delta_i", "Δ_i")


def grad(of: Math) -> Math:
    """The gradient of the loss in a quantity."""
    if len(of.text.split("_")[0]) <= 1 or of.text.startswith("("):
        return Math(rf"\mathrm{{d}}{of.tex}", f"d{of.text}")
    return Math(rf"\mathrm{{d}} \thinspace {of.tex}", f"d {of.text}")


DO_I, DV_J, DQ_I, DK_J = grad(O_I), grad(V_J), grad(Q_I), grad(K_J)
DP_IJ = grad(P_IJ)
DLSE_I = grad(LSE_I)


def dot(a: Math, b: Math) -> Math:
    return Math(rf"{a.tex} \cdot {b.tex}", f"{a.text}·{b.text}", n.TERM, n.TERM)


Line = tuple[Math | None, Math]


def formula(*lines: Line) -> Formula:
    """Equations with `=`."""
    return Formula(tuple(Equation(left, right) for left, right in lines))


# ---------------------------------------------------------------- the setting


@dataclass(frozen=True, slots=True)
class Setting:
    """One attention, the plan of its kernels, and how its expressions are written."""

    attention: Attention
    plan: KernelPlan
    write: Writer
    lets: tuple[tuple[Math, Expr], ...]

    @property
    def form(self) -> Form:
        return self.plan.weights.form

    @property
    def sums(self) -> bool:
        """Whether rows are divided by a sum."""
        return self.plan.weights.sums

    @property
    def drops(self) -> bool:
        return self.attention.dropout is not None

    @property
    def kappa(self) -> Expr:
        return self.plan.weights.kappa

    @property
    def plain(self) -> bool:
        """Whether the natural logit is the score itself."""
        return self.form is not Form.EXPONENTIAL or build.is_literal(self.kappa, 1)

    @property
    def extra(self) -> Expr | None:
        """The denominator's term beside the sum."""
        found = self.attention.normalizer.extra
        return None if found is None or not self.sums or build.is_literal(found, 0) else found

    def weight(self, s: Math = S_IJ) -> Math:
        """weight(s)."""
        return self.write.at(s=s)(self.attention.normalizer.weight)

    def moved(self, s: Math = S_IJ, m: Math = M_I) -> Math:
        """weight(s, m), as the file's stream lines have it."""
        line = self.attention.normalizer.stream_weight
        assert line is not None
        return self.write.at(s=s, m=m)(line)

    def rescale(self, m: Math = M_I, new: Math = M_NEW) -> Math:
        line = self.attention.normalizer.rescale
        assert line is not None
        return self.write.at(m=m, n=new)(line)

    def by(self, e: Expr, **symbols: Math) -> Math:
        return self.write.at(**symbols)(e)

    @property
    def logit(self) -> Math:
        """The quantity whose gradient the kernels hold: the score, or kappa times the score."""
        return S_IJ if self.plain else T_IJ

    def share(self) -> Math:
        """P_ij by the definition."""
        return n.quotient(self.weight(), DEN_I) if self.sums else self.weight()

    def times_kappa(self, x: Math) -> Math:
        """kappa * x."""
        return self.by(build.mul(self.kappa, M), m=x)

    def dropped(self, *factors: Math) -> Math:
        """A pair's product, with the factor that dropout gives it in front of the last."""
        return n.product(*factors[:-1], *([Z_IJ] if self.drops else []), factors[-1])

    def where(self) -> Iterator[Formula]:
        """The definitions that the formulas use by name."""
        if self.lets:
            plain = replace(self.write, names={e: name for name, e in self.lets})
            lines: list[Equation] = []
            for name, e in self.lets:
                own = replace(plain, names={k: v for k, v in plain.names.items() if k != e})
                lines.append(Equation(name, own(e)))
            yield Formula(tuple(lines))


def setting(attention: Attention, plan: KernelPlan) -> Setting:
    a = with_safe_sizes(attention, planner_takes)
    write = Writer()
    lets: dict[str, Expr] = {}
    if len(write(a.score).text) > LONG:
        lets |= definitions(a.score)
    if len(write(a.mask).text) > LONG:
        lets |= definitions(a.mask)
    names = {e: named_pair(name, e) for name, e in lets.items()}
    # The plan has rewritten some of these expressions; what it names alike is equal over the reals.
    for root in (plan.weights.natural, plan.weights.unit, *(g.leaf for g in plan.gradients)):
        for node in nodes(root):
            known = lets.get(node.name) if not isinstance(node, Load) and node.name is not None else None
            if known is not None and node.type is known.type and symbols(node) == symbols(known):
                names.setdefault(node, named_pair(str(node.name), node))
    if any(e == a.score for e in names):
        del names[a.score]
    return Setting(a, plan, replace(write, names=names), tuple((names[e], e) for e in lets.values() if e in names))


def notation(at: Setting) -> Prose:
    """What the letters stand for."""
    a, s = at.attention, SYMBOLS
    group = n.floored(Math(rf"h / ({s['Hq'].tex} / {s['Hkv'].tex})", "h / (H_q / H_kv)"))
    found = n.prose(
        "One batch {b} and one query head {h} are held fixed. {i} is the position of a query, {j} that of a key; {q}, "
        "{k}, {v} are rows of the inputs, keys and values being those of head {group}. A tile of queries runs from "
        "{q0} to {q1}, one of keys from {k0} to {k1}, both ends included; {interval} leaves out {end}. The sizes are "
        "{B}, {Hq}, {Hkv}, {Sq}, {Sk}, {D}, {Dv}: batches, query heads, key/value heads, queries, keys, and the head "
        "dims of keys and of values. ",
        **{name: s[name] for name in ("b", "h", "q0", "q1", "k0", "k1", "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv")},
        i=QUERY,
        j=KEY,
        q=Q_I,
        k=K_J,
        v=V_J,
        group=n.compared(s["hkv"], ("=", group)),
        interval=n.interval(n.atom("a"), n.atom("b")),
        end=n.atom("b"),
    )
    if any(isinstance(x, Symbol) and x.id == "scale" for x in nodes(a.score)):
        found += n.prose(
            "{scale} is {value} unless the caller gives it. ", scale=s["scale"], value=n.quotient(ONE, SQRT_D)
        )
    applied = [x for e in (a.score, a.mask, a.normalizer.weight) for x in nodes(e) if isinstance(x, Apply)]
    if any(x.op is Op.SIGMOID for x in applied):
        y = n.atom("y")
        logistic = n.quotient(ONE, n.plus(ONE, n.exponential(n.total([(True, y)]))))
        found += n.prose("{sigmoid}. ", sigmoid=n.compared(n.call(r"\sigma", "σ", y), ("=", logistic)))
    if at.sums or any(x.op in (Op.TO_FLOAT, Op.TO_INT) and x.args[0].type is Type.BOOL for x in applied):
        found += n.prose(
            "{iverson} is 1 where the condition holds, else 0. ", iverson=n.bracketed(n.words("condition"))
        )
    dx = Math(r"\mathrm{d} x", "dx")
    return (*found, *n.prose("{dx} is the gradient of the loss in {x}.", dx=dx, x=n.atom("x")))
