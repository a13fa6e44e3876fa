"""`qat` in a recipe, from the command's work to the folder that `quantize` reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from qdeploy.calib.batches import CalibBatch, CalibrationSet
from qdeploy.core.scheme import load_scheme
from qdeploy.quant.engine import quantize
from qdeploy.train.qat import SCHEMES

Fields = dict[str, Any]
Write = Callable[[Fields], Path]


@pytest.fixture
def wide(tiny_llama: Path, tmp_path: Path) -> Path:
    """The tiny LLaMA with sizes that 64 divides."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "wide"))
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)), hidden_size=64,
        intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.1,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("qat", ["int8", "int4"])
def test_a_recipe_trains_with_rounding_and_gives_a_plain_folder(
    fields: Fields, write: Write, here: Any, losses: Any, wide: Path, tmp_path: Path, qat: str
) -> None:
    fields |= {"model": str(wide), "precision": "bf16", "steps": 2}
    curves = []
    for kind in (None, qat):
        fields["out"], fields["qat"] = str(tmp_path / f"out-{kind}"), kind
        assert here(write(fields))[0] == 0
        curves.append(losses(Path(fields["out"])))
    assert curves[0] != curves[1]
    assert curves[1] == pytest.approx(curves[0], rel=0.05)

    ids = torch.randint(3, 300, (1, 8), generator=torch.Generator().manual_seed(0))
    calibration = CalibrationSet(
        batches=[CalibBatch(ids, torch.ones_like(ids))], samples=1, tokens=8, digest="0" * 64,
        files={}, seed=0, max_seq_len=8, truncated=0,
    )  # fmt: skip
    trained, exported = tmp_path / f"out-{qat}" / "model", tmp_path / "exported"
    manifest = quantize(trained, calibration, load_scheme(SCHEMES[qat]), exported)
    assert len(manifest.layers) == 14


def test_shapes_that_cannot_be_exported_stop_the_run_before_it_begins(
    fields: Fields, write: Write, here: Any
) -> None:
    fields["qat"] = "int4"
    code, err = here(write(fields))
    assert code == 2
    assert (
        "group size 64 does not divide the input features of model.layers.*.mlp.down_proj (80)"
        in (" ".join(err.split()))
    )
    assert not (Path(fields["out"]) / "model").exists()
