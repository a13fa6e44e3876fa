"""Whether all stages work here, and where it is tightest.

Serving works if one of the forms fits: that BF16 is too large is a reason to quantize.
"""

from __future__ import annotations

from collections.abc import Sequence

from qdeploy.core.units import GIB
from qdeploy.plan.ledger.schema import Need, Place, Stage, Tightest

_WORDS: dict[Place, str] = {"GPU": "GPU memory", "host": "host memory", "disk": "disk"}
_OPTIONS: dict[Place, str] = {"GPU": "--gpus", "host": "--host-memory", "disk": "--disk"}


def works(stages: Sequence[Stage]) -> bool | None:
    """True: all fit, of the served forms one; None: nothing is too large, not all was judged."""
    served = [stage.fits for stage in stages if _is_serving(stage)]
    found = [stage.fits for stage in stages if not _is_serving(stage)]
    found.append(True if True in served else None if None in served else False)
    return False if False in found else None if None in found else True


def tightest(stages: Sequence[Stage]) -> Tightest | None:
    """The smallest relative room of what the way needs; None: nothing was judged.

    Served forms that do not fit are left out where another one does.
    """
    found = [
        Tightest(stage=stage.name, place=place, room=round(need.room, 4))
        for stage in _needed(stages)
        for place, need in stage.needs.items()
        if need.room is not None
    ]
    return min(found, key=lambda tight: tight.room, default=None)


def verdict(stages: Sequence[Stage]) -> str:
    """Whether the whole way works here, what stands against it, where it is tightest."""
    result = works(stages)
    if result is False:
        return f"the whole way does not work here: {'; '.join(_problems(_needed(stages)))}"
    least = tightest(stages)
    place = ""
    if least is not None:
        left = f"{100 * least.room:.0f} % left"
        place = f"; tightest is the {_WORDS[least.place]} of {least.stage}, {left}"
    dropped = [stage.name for stage in stages if stage not in _needed(stages)]
    without = f", without {' and '.join(dropped)}, which does not fit" if dropped else ""
    if result:
        return f"the whole way works here{without}{place}"
    unknown = [place for place in _WORDS if _is_unknown(stages, place)]
    words = " and ".join(_WORDS[place] for place in unknown)
    options = " and ".join(_OPTIONS[place] for place in unknown)
    return (
        f"nothing is too large as far as it was judged{without}; {words} not judged, give "
        f"{options}{place}"
    )


def _needed(stages: Sequence[Stage]) -> list[Stage]:
    """All stages, without served forms that do not fit where another one may."""
    one_may = any(stage.fits is not False for stage in stages if _is_serving(stage))
    return [s for s in stages if not (one_may and _is_serving(s) and s.fits is False)]


def _problems(stages: Sequence[Stage]) -> list[str]:
    found = []
    for stage in stages:
        if stage.refusal is not None:
            found.append(f"{stage.name}: {stage.refusal}")
        found += [
            f"{stage.name} needs {_span(need)} of {_WORDS[place]}, there are "
            f"{(need.capacity_bytes or 0) / GIB:.1f} GiB"
            for place, need in stage.needs.items()
            if need.fits is False
        ]
    return found


def _span(need: Need) -> str:
    low, high = (f"{size / GIB:.1f}" for size in sorted((need.low_bytes, need.need_bytes)))
    return f"{low} GiB" if low == high else f"{low} to {high} GiB"


def _is_serving(stage: Stage) -> bool:
    return stage.name.startswith("serve ")


def _is_unknown(stages: Sequence[Stage], place: Place) -> bool:
    return any(
        need.capacity_bytes is None
        for stage in stages
        for name, need in stage.needs.items()
        if name == place
    )
