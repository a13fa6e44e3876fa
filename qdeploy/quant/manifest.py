"""`quant_manifest.json`: what `qdeploy quantize` did, written into the quantized folder."""

from __future__ import annotations

from typing import ClassVar

from qdeploy.core.artifacts import Artifact
from qdeploy.core.schema import Schema

MANIFEST_NAME = "quant_manifest.json"


class LayerRecord(Schema):
    """One quantized linear layer."""

    name: str
    """Module name in the checkpoint, e.g. 'model.layers.0.self_attn.q_proj'."""
    block: int
    scheme: str
    """Weights and activations in short, e.g. 'w8-channel-sym a8-token'."""
    method: str
    """The algorithm that set the values, e.g. 'smoothquant+rtn'."""
    fallback: str | None = None
    """Why a simpler method was taken for this layer."""
    output_error: float
    """Relative squared error of the layer's output on the calibration tokens:
    ||Y_q - Y||^2 / ||Y||^2, with real quantized activations."""


class SmoothingRecord(Schema):
    """One smoothing pair and the strength that the search chose."""

    source: str
    linears: list[str]
    alpha: float | None
    """None: left alone, because no strength was better than none."""
    error_before: float
    error_after: float


class SkippedLayer(Schema):
    """A linear layer left in the source's precision, and why."""

    name: str
    reason: str


class Coverage(Schema):
    """How much of the model is really quantized."""

    quantized_parameters: int
    total_parameters: int
    quantized_share: float
    source_bytes: int
    output_bytes: int


class CalibrationRecord(Schema):
    """The calibration data, by counts and digests only."""

    digest: str
    samples: int
    tokens: int
    seed: int
    max_seq_len: int
    files: dict[str, str]
    """File name -> sha256."""


class VerifyRecord(Schema):
    """The check of the written files: every tensor re-read and compared."""

    tensors: int
    mismatches: int
    max_abs_error: float
    """Largest difference between a dequantized re-read weight and the one in memory."""


class QuantManifest(Artifact):
    """What was quantized, how, on what, and how well it went."""

    SCHEMA: ClassVar[str] = "qdeploy.quant_manifest/1"

    model: str
    source_digest: str
    """`Checkpoint.digest` of the source folder."""
    output_digest: str
    """`Checkpoint.digest` of the written folder."""
    calibration: CalibrationRecord
    scheme: str
    format: str
    layers: list[LayerRecord]
    smoothing: list[SmoothingRecord]
    coverage: Coverage
    skipped: list[SkippedLayer]
    wall_seconds: float
    peak_rss_bytes: int
    verify: VerifyRecord
    versions: dict[str, str]
