"""The analysis of a whole file: syntax tree to `ir.attention.Attention`.

Statements are taken in the order of the text, for a let must stand before its first use; consts and params are known
from the start. Every mistake is collected, and raised together at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from attngen.analyse.constants import report_undefined
from attngen.analyse.declare import Const, consts, declare_names, params
from attngen.analyse.divisors import with_divisors
from attngen.analyse.expressions import Expressions
from attngen.analyse.normalizers import Normalizers
from attngen.analyse.outline import Outline, outline
from attngen.analyse.report import Report
from attngen.analyse.scope import (
    ASSUME,
    DROPOUT,
    LET,
    MASK,
    SCALE,
    SCORE,
    SCORE_ONLY,
    WHERE,
    Binding,
    Function,
    Later,
    Place,
    Scope,
    Value,
)
from attngen.errors import NOWHERE, InternalError, Source
from attngen.ir import attention as ir, build, walk
from attngen.ir.nodes import Expr, Literal, Scalar, Storage
from attngen.syntax import ast

TILES = (16, 32, 64, 128, 256, 512)


def analyse(
    module: ast.Module, source: Source, overrides: Mapping[str, bool | int | float] | None = None
) -> ir.Attention:
    """The attention that a parsed file defines, with the consts in `overrides` set to other values.

    Raises `SpecError` with every mistake found in the file, and `UsageError` where `overrides` names no const of it or
    has a value of the wrong type.
    """
    report = Report(source)
    o = outline(module, report)
    expressions = Expressions(report)
    declare_names(o, expressions)
    values = consts(o, expressions, report, overrides or {})
    analysis = _Analysis(o, expressions, report, {p.name: p for p in params(o, expressions, report)})
    for statement in o.statements:
        analysis.take(statement)
    return analysis.finish(values)


class _Analysis:
    """The statements seen so far."""

    def __init__(self, o: Outline, expressions: Expressions, report: Report, params: dict[str, ir.Param]) -> None:
        self._outline = o
        self._expressions = expressions
        self._report = report
        self._params = params
        self._normalizers = Normalizers(expressions, report)
        self._score: Expr | None = build.mul(SCORE_ONLY, SCALE)
        self._mask: Expr | None = build.TRUE
        self._dropout: Expr | None = None
        self._tile: tuple[int, int] | None = None
        self._tile_span = NOWHERE
        self._assumes: list[Expr] = []

    def take(self, statement: ast.Statement) -> None:
        match statement:
            case ast.Attention() | ast.Const():
                pass
            case ast.Param():
                self._where(statement)
            case ast.Let():
                self._let(statement)
            case ast.Score():
                self._score = self._real(statement.value, self._scope(SCORE), "`score` must be")
            case ast.Mask():
                self._mask = self._boolean(statement.value, self._scope(MASK), "`mask` must be")
            case ast.UseNormalizer():
                self._normalizers.use(statement)
            case ast.DefineNormalizer():
                self._normalizers.define(statement)
            case ast.Dropout():
                self._dropout = self._probability(statement.value)
            case ast.Tile():
                self._tile, self._tile_span = self._tile_sizes(statement), statement.span
            case ast.Assume():
                fact = self._fact(statement.value, self._scope(ASSUME), "assume")
                if fact is not None:
                    self._assumes.append(fact)
            case _:
                assert_never(statement)

    def finish(self, values: tuple[tuple[str, Const], ...]) -> ir.Attention:
        """The attention, once all statements were taken; raises what was found wrong with them."""
        normalizer = self._normalizers.chosen()
        self._report.check()
        if self._score is None or self._mask is None or normalizer is None:
            raise InternalError("an expression is missing, and no mistake was reported")
        roots = [self._score, self._mask, normalizer.weight, normalizer.extra, normalizer.stream_weight]
        return ir.Attention(
            name=self._outline.name,
            consts=values,
            params=with_divisors(tuple(self._params.values()), [e for e in roots if e is not None]),
            sizes=tuple(self._outline.fresh),
            score=self._score,
            mask=self._mask,
            normalizer=normalizer,
            dropout=self._dropout,
            tile=self._tile,
            assumes=tuple(self._assumes),
            tile_span=self._tile_span,
        )

    # ------------------------------------------------------------ expressions

    def _scope(self, place: Place, formals: dict[str, Binding] | None = None) -> Scope:
        return self._expressions.names.scope(place, formals)

    def _real(self, e: ast.Expr, scope: Scope, needs: str) -> Expr | None:
        return self._defined(self._expressions.real(e, scope, needs), e)

    def _boolean(self, e: ast.Expr, scope: Scope, needs: str) -> Expr | None:
        return self._defined(self._expressions.boolean(e, scope, needs), e)

    def _defined(self, e: Expr | None, written: ast.Expr) -> Expr | None:
        return None if e is None or report_undefined(e, written.span, self._report) else e

    def _fact(self, e: ast.Expr, scope: Scope, word: str) -> Expr | None:
        """A condition to rely on; None where there is nothing to it."""
        fact = self._boolean(e, scope, f"`{word}` must be")
        if fact == build.FALSE:
            message = f"this `{word}` can never hold"
            self._report.error("false-fact", message, e.span, "mend the condition, or the const in it")
        return None if isinstance(fact, Literal) else fact

    # ------------------------------------------------------------ statements

    def _where(self, param: ast.Param) -> None:
        if param.where is None:
            return
        element: Binding = Value(Scalar(param.name, Storage(param.dtype).type), "single element here", param.name_span)
        fact = self._fact(param.where, self._scope(WHERE, {param.name: element}), "where")
        if self._outline.named.get(param.name) is param:
            self._params[param.name] = replace(self._params[param.name], where=fact)

    def _let(self, let: ast.Let) -> None:
        own = self._expressions.names.own
        stands = self._outline.named.get(let.name) is let
        before = self._report.count
        if stands:
            own[let.name] = Later("let", let.name_span, being_defined=True)
        unknown: dict[str, Binding] = {a.name: Value(None, "argument", a.span) for a in let.args or ()}
        value = self._expressions.check(let.value, self._scope(LET, unknown))
        if not stands:
            return
        if let.args is None:
            own[let.name] = Value(None if value is None else walk.named(value, let.name), "let", let.name_span)
        else:
            own[let.name] = Function(let, prelude=False, sound=self._report.count == before)

    def _probability(self, e: ast.Expr) -> Expr | None:
        p = self._real(e, self._scope(DROPOUT), "`dropout` must be")
        if isinstance(p, Literal) and not 0 <= p.value < 1:
            message = f"the dropout probability is {p.value:g}, and must be at least 0 and less than 1"
            self._report.error("dropout-range", message, e.span, "write a fraction, such as 0.1")
        return p

    def _tile_sizes(self, tile: ast.Tile) -> tuple[int, int] | None:
        if tile.q is None or tile.k is None:
            return None
        for axis, size, span in zip("qk", (tile.q, tile.k), self._report.text.integers(tile.span), strict=True):
            if size not in TILES:
                nearest = min(TILES, key=lambda t: abs(t - size))
                message = f"the tile size of `{axis}` is {size}, and must be a power of two from 16 to 512"
                self._report.error("tile", message, span, f"write {nearest}")
        return tile.q, tile.k
