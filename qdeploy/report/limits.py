"""What an evaluation did not measure, said with its own numbers."""

from __future__ import annotations

from qdeploy.report.inputs import ReportData


def limits(data: ReportData) -> list[str]:
    """Sentences, the general ones last."""
    report = data.report
    samples = [s for items in data.evaluation.samples.values() for s in items.values()]
    found = []
    for result in report.classes:
        if result.skipped:
            found.append(f"{result.task_class}: {result.skipped} prompts did not fit, left out.")
        if not result.informative:
            found.append(f"{result.task_class} says nothing: {result.reason}.")
    if samples:
        prompt = max(sample.prompt_tokens for sample in samples)
        output = max(sample.output_tokens for sample in samples)
        found.append(
            f"Nothing is known about prompts longer than {prompt} tokens and answers longer than "
            f"{output} tokens: no item reached further."
        )
        languages = ", ".join(sorted({sample.lang for sample in samples}))
        found.append(f"Languages measured: {languages}. No other language was.")
    runtimes = "; ".join(dict.fromkeys(f"{c.name}: {c.runtime}" for c in report.candidates))
    found.append(
        f"Computed by: {runtimes}. Kernels of another server round differently; its speed and "
        "memory were not measured here."
    )
    found.append("Greedy decoding only. Sampling, several turns and tool calls were not measured.")
    found.append(
        "The intervals hold for prompts like these; for other traffic, evaluate on its prompts."
    )
    return found
