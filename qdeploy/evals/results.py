"""What `qdeploy eval` writes: samples (JSON lines) and `eval_report.json`.

The unit of everything is the task class: a suite split by language, e.g. 'short_qa.en'. Samples
keep the score of every metric for every item, so that any policy can be replayed without a model.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from qdeploy.core.artifacts import Artifact
from qdeploy.core.schema import Schema

REPORT_NAME = "eval_report.json"
SAMPLES_FOLDER = "samples"

Direction = Literal["higher", "lower"]
FinishReason = Literal["stop", "length", "scored"]


class Sample(Schema):
    """One item answered by one candidate; a line of `samples/CANDIDATE/SUITE.jsonl`."""

    id: str
    task_class: str
    lang: str
    cluster: str
    prompt_hash: str
    """sha256 of the prompt's token ids."""
    prompt_tokens: int
    prompt: str
    """The item's question as a person reads it, shown in reports."""
    reference: str
    output: str
    finish_reason: FinishReason
    output_tokens: int
    flags: list[str] = Field(default_factory=list)
    """Of 'empty', 'cut' (hit the token budget), 'extraction_failed', 'replacement_char'."""
    scores: dict[str, float]
    """Metric -> score of this item; a metric that does not apply to the item is absent."""
    loop_onset: int | None = None
    """Token position at which a loop that lasts to the end began; None: no loop."""


class CandidateInfo(Schema):
    """One side of the comparison and how it was run."""

    name: str
    source: str
    """The folder or address as given."""
    format: str
    """'bf16', 'fp32', 'compressed-tensors/int-quantized', ..."""
    weights_digest: str
    weights_bytes: int
    runtime: str
    """How the products were computed, e.g. 'float32 arithmetic on BF16 weights',
    'int8 x int8 -> int32, exact float32 kernel'."""
    manifest_matches: bool | None = None
    """Whether the weights are those that quant_manifest.json describes; None: no manifest."""
    seconds: float
    generated_tokens: int


class MetricResult(Schema):
    """One metric of one task class for one candidate against the baseline, in pairs."""

    metric: str
    direction: Direction
    n: int
    clusters: int
    baseline: float
    candidate: float
    difference: float
    """Mean of (candidate - baseline) over the items."""
    low: float
    high: float
    """Two-sided interval of the difference at `confidence` (so each end is one-sided at
    1 - (1 - confidence) / 2)."""
    confidence: float
    worse: int
    better: int
    """Items whose score got worse / better in the metric's direction (flips both ways)."""
    noise: float | None = None
    """The same mean difference between two runs of the baseline under different batching."""
    noise_changed: int | None = None
    """Items whose score differs between those two runs."""


class ClassResult(Schema):
    """One task class: the baseline's standing and each candidate's comparison."""

    task_class: str
    suite: str
    kind: str
    lang: str
    n: int
    skipped: int
    """Items whose prompt did not fit; never cut silently."""
    primary: str
    """The metric by which the baseline is judged able or unable to do the task."""
    floor: float
    """What guessing reaches on the primary metric."""
    baseline_primary: float
    informative: bool
    reason: str
    """Why the class is uninformative; empty otherwise."""
    metrics: dict[str, list[MetricResult]]
    """Candidate -> results, in the suite's order of metrics."""


class ScreenResult(Schema):
    """Teacher-forced comparison on the baseline's own answers: screens out broken files."""

    candidate: str
    tokens: int
    kl_mean: float
    """Mean of KL(baseline || candidate) per token, in nats."""
    kl_p99: float
    top1_agreement: float
    """Share of positions at which both put the same token first."""
    block_errors: list[float] = Field(default_factory=list)
    """Per decoder block, both fed the baseline's input: ||D_c - D_b||^2 / ||D_b||^2 of the
    block's update D = output - input."""
    layer_errors: dict[str, float] = Field(default_factory=dict)
    """'BLOCK.LINEAR' -> the same of the linear layer's output Y: ||Y_c - Y_b||^2 / ||Y_b||^2, for
    layers that no smoothing scales. A wrong scale in one layer stands out here at once."""


class Finding(Schema):
    """Something that makes a comparison invalid (error) or deserves a look (warning)."""

    level: Literal["error", "warning"]
    candidate: str | None
    code: str
    """'same_weights', 'prompt_mismatch', 'missing_samples', 'not_finite', ..."""
    message: str


class EvalReport(Artifact):
    """The comparison of candidates with the baseline (the first of them)."""

    SCHEMA: ClassVar[str] = "qdeploy.eval_report/1"

    model: str
    baseline: str
    candidates: list[CandidateInfo]
    suites: dict[str, str]
    """Suite -> sha256 of its YAML and JSONL."""
    decoding: dict[str, str]
    seed: int
    classes: list[ClassResult]
    screens: list[ScreenResult]
    findings: list[Finding]
    samples: dict[str, str]
    """Relative path of each samples file -> sha256."""
    versions: dict[str, str]
    machine: str
    wall_seconds: float
