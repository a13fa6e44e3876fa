from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError, UnknownNameError


@pytest.mark.parametrize("field", ["gpus", "nodes", "micro_batch", "seq_len", "lora_rank"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_sizes_must_be_positive_whole_numbers(planning: Any, field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        planning.request(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "near"),
    [
        ("precision", "bf61", "bf16"),
        ("offload", "optimiser", "optimizer"),
        ("attention", "flas", "flash"),
        ("peft", "qlor", "qlora"),
        ("loss", "liga", "liger"),
        ("basis", "devise", "device"),
        ("optimizer", "adam_w", "adamw"),
        ("strategy", "zero-3", "zero3"),
        ("accounting", "deepsped", "deepspeed"),
        ("gpu", "A100-80", "A100-80GB"),
        ("model", "llama-2-7", "llama-2-7b"),
        ("model", "meta-llama/Nope", "choices"),
    ],
)
def test_unknown_names(planning: Any, field: str, value: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        planning.plan(**{field: value})
    assert near in str(error.value.hint)


@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "none", "gpus": 2},
        {"strategy": "ddp"},
        {"strategy": "zero1", "offload": "optimizer", "gpus": 2},
        {"strategy": "zero2", "offload": "all", "gpus": 2},
        {"strategy": "zero2", "gpus": 2, "accounting": "torch"},
        {"strategy": "fsdp", "gpus": 2, "accounting": "deepspeed"},
        {"strategy": "zero2", "gpus": 2, "precision": "bf16-pure"},
        {"gpus": 8, "tensor_parallel": 3},
        {"gpus": 8, "global_batch": 12},
        {"gpus": 2, "micro_batch": None},
        {"gpus": 8, "tensor_parallel": 8, "model": "smollm2-135m"},
        {"gpus": 8, "expert_parallel": 8},
        {"train_embeddings": True},
        {"gpus": 8, "context_parallel": 8, "seq_len": 1001},
        {"strategy": "fsdp", "gpus": 2, "optimizer": "adamw8bit"},
        {"offload": "optimizer", "optimizer": "adamw8bit"},
        {"gpu": "T4", "attention": "flash"},
        {"gpu": "T4", "precision": "bf16-pure"},
        {"host_memory_bytes": 0},
    ],
)
def test_what_does_not_go_together(planning: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        planning.plan(**fields)
    assert not isinstance(error.value, UnknownNameError)


def test_fsdp_brings_its_own_accounting(planning: Any) -> None:
    assert planning.plan(strategy="fsdp", gpus=4).accounting == "torch"


def test_more_tokens_than_positions_is_a_warning(planning: Any) -> None:
    result = planning.plan(model="gpt2", seq_len=2048)
    assert any("1024 positions" in warning for warning in result.warnings)
    assert planning.plan(model="gpt2", seq_len=1024).warnings == []


def test_model_folder(planning: Any, tmp_path: Path) -> None:
    folder = tmp_path / "模型"
    folder.mkdir()
    with pytest.raises(InputError, match=r"no config\.json"):
        planning.plan(model=folder)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = planning.plan(model=folder)
    assert result.model.name == result.request.model == "模型"
    assert result.model.parameters == 134_515_008
    assert str(tmp_path) not in result.to_json()


def test_one_token_one_sequence(planning: Any) -> None:
    one = planning.only(model="smollm2-135m", strategy="none", seq_len=1)
    assert one.per_gpu.logits_bytes == 16 * 49152
    assert one.fits
