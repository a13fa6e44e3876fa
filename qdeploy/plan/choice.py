"""Which of the layouts that fit: the fastest; among near ones, the rule of thumb.

The step-time model cannot tell layouts apart that lie within 15 %. Among those, data parallelism
without sharding comes first (nothing to shard), then by the number of GPUs: 2 ZeRO-3, 4 ZeRO-2,
8 and more ZeRO-1 with data parallelism; then no offload, no checkpointing, the faster. The second
best is what the same rule takes of the rest, of another strategy or offload.
"""

from __future__ import annotations

from qdeploy.plan.schema import Candidate

_NEAR = 1.15


def choose(candidates: list[Candidate], world: int) -> Candidate | None:
    """The candidate to run, or None when nothing fits."""
    fitting = [candidate for candidate in candidates if candidate.fits]
    if not fitting:
        return None
    fastest = min(candidate.relative_step_time for candidate in fitting)
    near = [c for c in fitting if c.relative_step_time <= fastest * _NEAR]
    preferred = _preference(world)
    return min(
        near,
        key=lambda c: (
            preferred.index(c.strategy) if c.strategy in preferred else len(preferred),
            c.offload != "none",
            c.relative_step_time,
        ),
    )


def second_best(chosen: Candidate, candidates: list[Candidate], world: int) -> Candidate | None:
    """What to take if not `chosen`: another strategy or offload; None when nothing else fits."""
    others = [c for c in candidates if (c.strategy, c.offload) != (chosen.strategy, chosen.offload)]
    second = choose(others, world)
    if second is None:
        return None
    pace = second.relative_step_time / chosen.relative_step_time
    more = second.per_gpu.total_bytes / chosen.per_gpu.total_bytes - 1
    reason = (
        f"{_percent(pace - 1, 'slower', 'faster')} by the step-time model, "
        f"{_percent(more, 'more', 'less')} memory; {second.reason}"
    )
    return second.model_copy(update={"reason": reason})


def choice_reason(chosen: Candidate, candidates: list[Candidate], world: int) -> str:
    """Why `chosen`, in a sentence, its own reason at the end."""
    others = [c for c in candidates if c.fits and c is not chosen]
    if not others:
        return f"the only one that fits; {chosen.reason}"
    fastest = min(c.relative_step_time for c in [chosen, *others])
    if chosen.relative_step_time == fastest:
        why = "the fastest that fits by the step-time model"
    elif chosen.strategy in ("none", "ddp"):
        why = "nothing needs to be sharded, and it is within 15 % of the fastest that fits"
    else:
        why = (
            f"within 15 % of the fastest that fits, and the rule of thumb for {world} GPUs takes "
            f"{chosen.strategy}"
        )
    return f"{why}; {chosen.reason}"


def _preference(world: int) -> list[str]:
    """Strategies in the order of the rule of thumb for `world` GPUs."""
    if world < 4:
        sharded = ["zero3", "zero2", "zero1"]
    elif world < 8:
        sharded = ["zero2", "zero1", "zero3"]
    else:
        sharded = ["zero1", "zero2", "zero3"]
    return ["none", "ddp", *sharded, "fsdp-grad-op", "fsdp"]


def _percent(ratio: float, more: str, less: str) -> str:
    percent = round(100 * abs(ratio))
    if percent == 0:
        return "as fast" if more == "slower" else "as much"
    return f"{percent} % {more if ratio > 0 else less}"
