"""The curves as inline SVG, one row per GPU: measured is solid, a way that nobody saw dotted, unknown not drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from recover.core.report.curves import Band, Curve, Curves, Point
from recover.core.report.html import joined, tag
from recover.core.report.words import UNKNOWN, size, span

_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
_PAUSE = 26.0  # a folded pause is so wide
_BADGE = 9.0  # radius of a rung's number
_HEAD = 24.0  # where the rungs' numbers stand
_DOTS = 40  # so many looks at most are each marked
_Height = Callable[[float], float]  # MiB to y


@dataclass(frozen=True, slots=True)
class Shape:
    """Where things stand, in the SVG's own units, which are pixels where it is not scaled. `above`: labels on top."""

    name: str
    width: float
    left: float
    right: float
    row: float
    ram: float
    above: float
    ticks: int


WIDE = Shape("wide", 960, 108, 172, 26, 96, 0, 8)
NARROW = Shape("narrow", 340, 10, 2, 26, 84, 16, 4)


class Scale:
    """Time to x. A pause in which nobody worked on the run is folded to a fixed width."""

    def __init__(self, curves: Curves, begin: float, end: float) -> None:
        self._begin, self._end = begin, end
        self._from, self._until, self._pauses = curves.began, curves.ended, curves.pauses
        paused = sum(b - a for a, b in curves.pauses)
        self._shown = max(1.0, curves.ended - curves.began - paused)
        self._per_s = max(1.0, end - begin - _PAUSE * len(curves.pauses)) / self._shown

    @property
    def shown_s(self) -> float:
        return self._shown

    def x(self, at: float) -> float:
        at = min(max(at, self._from), self._until)
        x = self._begin + (at - self._from) * self._per_s
        for begin, end in self._pauses:
            if at >= end:
                x += _PAUSE - (end - begin) * self._per_s
            elif at > begin:
                x += (at - begin) * (_PAUSE / (end - begin) - self._per_s)
        return x


def chart(curves: Curves, shape: Shape, words: str) -> Markup:
    """All rows below each other over one axis of time. `words`: the chart in a sentence, for who can't see it."""
    scale = Scale(curves, shape.left, shape.width - shape.right)
    rows = [(gpu, shape.row) for gpu in curves.gpus] + ([(curves.ram, shape.ram)] if curves.ram is not None else [])
    y, drawn = _HEAD + 4, list[Markup]()
    for curve, height in rows:
        drawn.append(_row(curve, scale, shape, y, height))
        y += shape.above + height + 8
    name = f"curves-{shape.name}"
    return tag(
        "svg",
        tag("title", "GPU memory and RAM over the run", id=f"{name}-title"),
        tag("desc", words, id=f"{name}-words"),
        tag("defs", _hatch(shape)),
        _pauses(curves, scale, y),
        _bands(curves.bands, scale, curves.ended, y),
        *drawn,
        _verdict(curves, scale, y),
        _axis(curves, scale, shape, y),
        viewBox=f"0 0 {shape.width:g} {y + 20:g}",
        class_=f"chart {shape.name}",
        role="img",
        aria_labelledby=f"{name}-title {name}-words",
    )


def _hatch(shape: Shape) -> Markup:
    line = tag("path", d="M0 6L6 0", class_="hatch")
    return tag("pattern", line, id=f"unseen-{shape.name}", width=6, height=6, patternUnits="userSpaceOnUse")


def _row(curve: Curve, scale: Scale, shape: Shape, y: float, height: float) -> Markup:
    """One curve in its own strip: label, gaps, line, baseline, figures."""
    top, y0 = max(1, curve.top or 1), y + shape.above

    def at(mib: float) -> float:
        return y0 + height - 1 - (height - 2) * min(1.0, mib / top)

    left, right = shape.left, shape.width - shape.right
    runs = pieces(curve.points)
    strip = tag("rect", x=left, y=y0, width=right - left, height=height, class_="strip")
    base = None
    if curve.baseline is not None:
        base = tag("path", d=f"M{left:.1f} {at(curve.baseline):.1f}H{right:.1f}", class_="baseline")
    return tag(
        "g",
        strip,
        _gaps(curve.points, scale, shape, y0, height),
        *(_area(run, scale, at, y0 + height - 1) for run in runs),
        base,
        *(_line(run, scale, at) for run in runs),
        _dots(curve.points, runs, scale, at),
        _labels(curve, shape, y, height),
    )


def pieces(points: Sequence[Point]) -> list[list[Point]]:
    """The stretches of looks next to each other that all saw a figure: nothing leads over a look that did not."""
    found: list[list[Point]] = []
    joins = False
    for point in points:
        if point.mib is None:
            joins = False
            continue
        if joins:
            found[-1].append(point)
        else:
            found.append([point])
        joins = True
    return found


def turns(run: Sequence[Point]) -> list[Point]:
    """Without looks that only say what those on both sides of them said: the same line, and hours of it stay small."""
    return [
        point
        for i, point in enumerate(run)
        if i in (0, len(run) - 1)
        or point.after_act
        or run[i + 1].after_act
        or not point.mib == run[i - 1].mib == run[i + 1].mib
    ]


def _line(run: Sequence[Point], scale: Scale, at: _Height) -> Markup:
    """Solid where look followed look; dotted over what was done between two, which nobody watched."""
    solid, dotted = [""], [""]
    for before, point in pairwise(turns(run)):
        step = f"M{_xy(before, scale, at)}L{_xy(point, scale, at)}"
        (dotted if point.after_act else solid).append(step)
    drawn = [tag("path", d=_joined("".join(d)), class_=name) for d, name in ((solid, "line"), (dotted, "way")) if d[1:]]
    return joined(*drawn)


def _joined(path: str) -> str:
    """Steps that go on where the one before ended, as one line."""
    found: list[str] = []
    for step in path.split("M")[1:]:
        begin, _, end = step.partition("L")
        found.append(f"L{end}" if found and found[-1].partition("L")[2] == begin else f"M{begin}L{end}")
    return "".join(found)


def _xy(point: Point, scale: Scale, at: _Height) -> str:
    return f"{scale.x(point.at):.1f} {at(point.mib or 0):.1f}"


def _area(run: Sequence[Point], scale: Scale, at: _Height, floor: float) -> Markup | None:
    if len(run) < 2:
        return None
    line = "".join(f"L{_xy(p, scale, at)}" for p in turns(run))
    return tag("path", d=f"M{scale.x(run[0].at):.1f} {floor:.1f}{line}V{floor:.1f}Z", class_="area")


def _dots(points: Sequence[Point], runs: Sequence[Sequence[Point]], scale: Scale, at: _Height) -> Markup:
    """Each look where they are few; where they are many only one that stands alone, which no line would show."""
    shown = [p for p in points if p.mib is not None] if len(points) <= _DOTS else [r[0] for r in runs if len(r) == 1]
    return joined(
        tag("circle", cx=scale.x(p.at), cy=at(p.mib or 0), r=1.8 if len(points) <= _DOTS else 2.2, class_="dot")
        for p in shown
    )


def gaps(points: Sequence[Point], ended: float) -> list[tuple[float, float]]:
    """Where nothing is known: from the last look that saw a figure to the next one that did, or to the end."""
    found: list[tuple[float, float]] = []
    known: float | None = None
    unseen: float | None = None
    for point in points:
        if point.mib is None:
            unseen = unseen if unseen is not None else (known if known is not None else point.at)
            continue
        if unseen is not None:
            found.append((unseen, point.at))
        known, unseen = point.at, None
    return [*found, (unseen, ended)] if unseen is not None else found


def _gaps(points: Sequence[Point], scale: Scale, shape: Shape, y: float, height: float) -> Markup:
    drawn: list[Markup] = []
    for begin, end in gaps(points, points[-1].at):
        x, width = scale.x(begin), max(4.0, scale.x(end) - scale.x(begin))
        fill = f"url(#unseen-{shape.name})"
        drawn.append(tag("rect", x=x, y=y + 1, width=width, height=height - 2, fill=fill, class_="gap"))
        if width > 16:
            drawn.append(tag("text", UNKNOWN, x=x + width / 2, y=y + height / 2 + 4, class_="unknown"))
    return joined(*drawn)


def _labels(curve: Curve, shape: Shape, y: float, height: float) -> Markup:
    figures = f"{size(curve.before)} → {size(curve.after)}" if curve.known else "not seen"
    if shape.above:
        return joined(
            tag("text", curve.label, x=0, y=y + 12, class_="label"),
            tag("text", figures, x=shape.left + 100, y=y + 12, class_="figure"),
        )
    middle = y + min(height / 2, 30) + 4
    return joined(
        tag("text", curve.label, x=0, y=middle, class_="label"),
        tag("text", figures, x=shape.width - shape.right + 10, y=middle, class_="figure"),
        tag("text", f"of {size(curve.top)}", x=shape.width - shape.right + 10, y=middle + 16, class_="small")
        if height > 60
        else None,
        tag("text", f"baseline {size(curve.baseline)}", x=shape.width - shape.right + 10, y=middle + 32, class_="small")
        if height > 60 and curve.baseline is not None
        else None,
    )


def _bands(bands: Sequence[Band], scale: Scale, ended: float, bottom: float) -> Markup:
    """The rungs: a strip over all curves, and the try's number above it, moved aside where two would meet."""
    drawn: list[Markup] = []
    free = 0.0
    for band in bands:
        begin, end = scale.x(band.began), scale.x(band.ended if band.ended is not None else ended)
        width = max(3.0, end - begin)
        x = max(begin + width / 2, free)
        free = x + 2 * _BADGE + 2
        words = f"{band.number}: {band.step}, {band.said}"
        drawn.append(
            tag(
                "g",
                tag("title", words),
                tag("rect", x=begin, y=_HEAD, width=width, height=bottom - _HEAD, class_="rung"),
                tag("line", x1=x, y1=_HEAD / 2 + _BADGE, x2=begin + width / 2, y2=_HEAD + 4, class_="lead"),
                tag("circle", cx=x, cy=_HEAD / 2, r=_BADGE, class_="badge"),
                tag("text", str(band.number), x=x, y=_HEAD / 2 + 4, class_="number"),
                class_=f"band {band.tone}",
            )
        )
    return joined(*drawn)


def _verdict(curves: Curves, scale: Scale, bottom: float) -> Markup | None:
    """An upright line at the look that decided the end: what rises after it was started by us."""
    if curves.verdict_at is None:
        return None
    x = scale.x(curves.verdict_at)
    return tag("g", tag("title", "the verdict"), tag("path", d=f"M{x:.1f} {_HEAD:g}V{bottom:g}", class_="verdict-at"))


def _pauses(curves: Curves, scale: Scale, bottom: float) -> Markup:
    return joined(
        tag(
            "g",
            tag("title", f"for {span(end - begin)} nobody worked on this run"),
            tag("rect", x=scale.x(begin), y=_HEAD, width=_PAUSE, height=bottom - _HEAD, class_="pause"),
            tag("text", "⋯", x=scale.x(begin) + _PAUSE / 2, y=_HEAD + 10, class_="unknown"),
        )
        for begin, end in curves.pauses
    )


def _axis(curves: Curves, scale: Scale, shape: Shape, y: float) -> Markup:
    every = next((t for t in _TICKS if scale.shown_s / t <= shape.ticks), _TICKS[-1])
    drawn = [tag("path", d=f"M{shape.left:g} {y:g}H{shape.width - shape.right:g}", class_="axis")]
    free = -1.0
    for n in range(int((curves.ended - curves.began) // every) + 1):
        at = curves.began + n * every
        x = scale.x(at)
        if x < free or any(begin < at < end for begin, end in curves.pauses):
            continue
        free = x + 40
        side = "" if x > shape.left + 10 else " first"
        drawn.append(tag("path", d=f"M{x:.1f} {y:g}v4", class_="axis"))
        drawn.append(tag("text", f"+{elapsed(n * every)}", x=x, y=y + 16, class_=f"tick{side}"))
    return joined(*drawn)


def elapsed(seconds: float) -> str:
    """0:00, 1:42, 1:02:03."""
    whole = max(0, int(seconds))
    hours = f"{whole // 3600}:{whole % 3600 // 60:02}" if whole >= 3600 else str(whole // 60)
    return f"{hours}:{whole % 60:02}"
