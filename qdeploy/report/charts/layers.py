"""Where in the model the error sits: by block in the screen, by linear layer in calibration."""

from __future__ import annotations

from markupsafe import Markup

from qdeploy.evals.results import ScreenResult
from qdeploy.quant.manifest import LayerRecord
from qdeploy.report.charts.frame import Scale, chart, dot, legend, limit_line, log_scale


def blocks_chart(screens: list[tuple[int, ScreenResult]], limit: float | None) -> Markup:
    """Error of each decoder block's update, of each (series, screen); `limit` as a line."""
    measured = [(series, screen) for series, screen in screens if screen.block_errors]
    y = log_scale(
        [e for _, screen in measured for e in screen.block_errors] + ([limit] if limit else [])
    )
    if y is None:
        return Markup("")
    blocks = max(len(screen.block_errors) for _, screen in measured)
    x = Scale(-0.5, blocks - 0.5)
    marks = Markup("").join(
        dot(x(at), y(error), series, f"{screen.candidate}, block {at}: {error:.2g}")
        for series, screen in measured
        for at, error in enumerate(screen.block_errors)
    )
    if limit:
        marks = limit_line(y(limit), f"limit of the policy: {limit:g}") + marks
    names = [(series, screen.candidate) for series, screen in measured]
    return legend(names) + chart(
        marks,
        (_block_ticks(x, blocks), "decoder block"),
        (y.ticks(), "relative squared error of the block's update"),
        "Error by decoder block, both models fed the baseline's input",
    )


def linears_chart(layers: list[LayerRecord]) -> Markup:
    """Output error of each quantized linear layer on the calibration tokens."""
    y = log_scale(layer.output_error for layer in layers)
    if y is None:
        return Markup("")
    kinds = list(dict.fromkeys(layer.name.rpartition(".")[2] for layer in layers))
    blocks = max(layer.block for layer in layers) + 1
    x = Scale(-0.5, blocks - 0.5)
    marks = Markup("").join(
        dot(
            x(layer.block),
            y(layer.output_error),
            kinds.index(layer.name.rpartition(".")[2]),
            f"{layer.name}: {layer.output_error:.2g}",
        )
        for layer in layers
    )
    return legend(list(enumerate(kinds))) + chart(
        marks,
        (_block_ticks(x, blocks), "decoder block"),
        (y.ticks(), "relative squared error of the layer's output"),
        "Output error of each quantized linear layer",
    )


def _block_ticks(x: Scale, blocks: int) -> list[tuple[float, str]]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if blocks / step <= 10)
    return [(x(at), str(at)) for at in range(0, blocks, step)]
