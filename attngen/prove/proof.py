"""What was shown of one plan: the table that `attngen check` prints and a kernel carries."""

from __future__ import annotations

from dataclasses import dataclass, field

from attngen.prove.verdict import Claim, Obligation, Refuted, Shown, Unknown, allowed_line, can_do_without, proved_line


@dataclass(frozen=True, slots=True)
class Proof:
    """What was shown of one plan. `dropped` says what the plan gave up for a tile range that is not proved, `needs`
    what every call checks of its sizes.

    `expected` are claims that no kernel rests on: a refuted one is a warning (`emptiness`).
    """

    name: str
    shown: tuple[Shown, ...]
    dropped: tuple[str, ...] = ()
    allowed: tuple[Obligation, ...] = ()
    needs: tuple[str, ...] = ()
    expected: tuple[Claim, ...] = ()
    cached: bool = field(default=False, compare=False)

    def of(self, obligation: Obligation) -> Shown:
        return next(s for s in self.shown if s.obligation is obligation)

    @property
    def refuted(self) -> tuple[tuple[Obligation, Claim], ...]:
        return tuple((s.obligation, c) for s in self.shown for c in s.claims if isinstance(c.verdict, Refuted))

    @property
    def unknown(self) -> tuple[tuple[Obligation, Claim], ...]:
        return tuple((s.obligation, c) for s in self.shown for c in s.claims if isinstance(c.verdict, Unknown))

    @property
    def refused(self) -> tuple[tuple[Obligation, Claim], ...]:
        """The unknown claims for which the plan has nothing else, and that the user does not allow."""

        def given_up(o: Obligation, c: Claim) -> bool:
            about_ranges = o in (Obligation.TILE_RANGES, Obligation.INTEGER_WIDTH)
            return bool(self.dropped) and about_ranges and can_do_without(c)

        return tuple((o, c) for o, c in self.unknown if not (o in self.allowed or given_up(o, c)))

    @property
    def holds(self) -> bool:
        """Whether the plan may be emitted."""
        return not self.refuted and not self.refused

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.shown)

    def summary(self) -> tuple[str, ...]:
        """A few lines for the generated file's header: the same on every machine."""
        lines = [proved_line(s.obligation for s in self.shown if s.status == "proved")]
        lines += [f"Not proved, and not used: {what}." for what in self.dropped]
        unproved = [o.value for o in self.allowed if self.of(o).status == "unknown"]
        if unproved:
            lines.append(allowed_line(unproved))
        return tuple(lines)
