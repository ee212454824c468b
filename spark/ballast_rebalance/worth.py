"""Decides whether a plan is worth proposing. PURE."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_planner import Plan, Quality
from ballast_rebalance.measured import Refusal, counted


@dataclass(frozen=True)
class Threshold:
    """A proposal must lower the spread or the highest fill by `min_improvement` (fractions of capacity)."""

    min_improvement: float = 0.02
    min_spread: float = 0.05


def require_worth(plan: Plan, threshold: Threshold) -> None:
    """Raises Refusal for plans that move nothing, make things worse, or gain too little."""
    quality = plan.quality
    assert quality is not None
    if not plan.moves:
        if out := quality.before.out_of_band:
            outside = "1 directory is" if out == 1 else f"{out} directories are"
            raise Refusal(
                "NoBetterPlacement",
                f"{outside} out of band, and no move helps: add a volume or a broker",
            )
        raise Refusal("Balanced", f"all directories are within the band; the spread is {quality.before.spread:.1%}")
    if quality.after.highest > quality.before.highest + 1e-9:
        raise Refusal("WouldMakeWorse", "the fullest directory would become fuller")
    # A plan that was cut off at max_moves is a step towards what the whole gains.
    aim = quality.aim or quality.after
    lowered = quality.before.highest - aim.highest
    narrowed = quality.before.spread - aim.spread
    if max(lowered, narrowed) < threshold.min_improvement:
        raise Refusal(
            "TooLittleToGain",
            f"highest fill {lowered:+.2%} and spread {narrowed:+.2%} better, less than {threshold.min_improvement:.2%}",
        )
    if quality.before.spread < threshold.min_spread:
        raise Refusal("Balanced", f"the spread of {quality.before.spread:.1%} is below {threshold.min_spread:.1%}")
    _require_progress(quality)


def _require_progress(quality: Quality) -> None:
    """Raises Refusal if a truncated plan levels nothing by itself: its moves would be proposed again and again."""
    before, after = quality.before, quality.after
    nearer = after.coefficient_of_variation < before.coefficient_of_variation or after.out_of_band < before.out_of_band
    if quality.aim is not None and not nearer and not quality.on_more_racks:
        raise Refusal(
            "MaxMovesTooFew",
            f"{counted(quality.partitions, 'move')} of the {quality.partitions + quality.to_follow} "
            "that it takes would make nothing more level: raise maxMoves (--max-moves), which allows for more at once",
        )
