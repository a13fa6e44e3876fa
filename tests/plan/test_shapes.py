"""Shipped shapes against published totals of parameters."""

from __future__ import annotations

import pytest

from qdeploy.core.toml import read_toml
from qdeploy.models.shipped_shapes import shipped_shape, shipped_shape_names

PACKAGE = "qdeploy.models.shapes"

# Totals that the hub shows for the safetensors files of each model (its first hub id), shared
# embeddings once; for models without such files the sum over the tensors of their weights.
PUBLISHED = {
    "baichuan2-13b": 13_896_668_160,
    "baichuan2-7b": 7_505_973_248,
    "bloom-176b": 176_247_271_424,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "chatglm2-6b": 6_243_584_000,
    "chatglm3-6b": 6_243_584_000,
    "deepseek-v2-lite": 15_706_484_224,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-1b": 999_885_952,
    "gemma-7b": 8_537_680_896,
    "glm-4-9b": 9_399_951_360,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "internlm2-7b": 7_737_708_544,
    "llama-13b": 13_015_864_320,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.2": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "mpt-7b-alibi": 6_649_286_656,
    "olmo-2-7b": 7_298_617_344,
    "opt-1.3b": 1_315_758_080,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-6.7b": 6_658_473_984,
    "phi-1.5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-3-mini-128k": 3_821_079_552,
    "qwen-1.8b": 1_836_828_672,
    "qwen-14b": 14_167_290_880,
    "qwen-72b": 72_287_920_128,
    "qwen-7b": 7_721_324_544,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm3-3b": 3_075_098_624,
    "starcoder2-7b": 7_173_923_840,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-34b": 34_388_917_248,
    "yi-6b": 6_061_035_520,
    "yi-9b": 8_829_407_232,
    # EleutherAI/pythia, README, "total params".
    "pythia-1.4b": 1_414_647_808,
    "pythia-12b": 11_846_072_320,
    "pythia-6.9b": 6_857_302_016,
    # mosaicml/llm-foundry, scripts/train/benchmarking/README.md, column Params, sequences of 2048.
    "mpt-125m": 125_311_488,
    "mpt-13b": 12_853_954_560,
    "mpt-1b": 1_315_950_592,
    "mpt-30b": 29_975_214_080,
    "mpt-350m": 355_985_408,
    "mpt-3b": 2_651_837_440,
    "mpt-70b": 64_862_437_376,
    "mpt-760m": 760_470_528,
    "mpt-7b": 6_658_859_008,
    # The hub counts the 256 router biases of 58 layers, which transformers keeps as buffers.
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    # The encoder with its pooler (BertModel), and a classifier for two labels.
    "bert-base-uncased": 109_482_240 + 2 * 768 + 2,
    "bert-large-uncased": 335_141_888 + 2 * 1024 + 2,
    # Stability-AI/StableLM, README, which counts what tensor-parallel ranks replicate (norms, and
    # biases behind attention and MLP: 6H a block, 2H behind all) on each of 4 and of 2 ranks.
    "stablelm-alpha-3b": 3_638_525_952 - 3 * (16 * 6 + 2) * 4096,
    "stablelm-alpha-7b": 7_869_358_080 - 1 * (16 * 6 + 2) * 6144,
}
# Only a rounded count is published: galactica-30b 30.0 billion (arXiv 2211.09085, its table of
# models), mpt-30b with ALiBi 29.95 billion (its model card).
ROUNDED = {"galactica-30b": 30.0e9, "mpt-30b-alibi": 29.95e9}


@pytest.mark.parametrize("name", shipped_shape_names())
def test_published_total(name: str) -> None:
    known = shipped_shape(name)
    assert known is not None
    assert known.parameters == known.shape.parameters
    if name in ROUNDED:
        assert known.parameters == pytest.approx(ROUNDED[name], rel=2e-3)
    else:
        assert known.parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", shipped_shape_names())
def test_file(name: str) -> None:
    data, digest = read_toml(PACKAGE, name)
    assert set(data) == {"aliases", "source", "config"}
    assert data["source"].startswith("https://")
    known = shipped_shape(name)
    assert known is not None
    assert known.shape.name == name
    assert known.digest == digest
    for alias in data["aliases"]:
        assert shipped_shape(alias) == known


def test_no_name_twice() -> None:
    owners = {known: known for known in shipped_shape_names()}
    for known in shipped_shape_names():
        aliases = read_toml(PACKAGE, known)[0]["aliases"]
        for alias in (alias.casefold() for alias in aliases):
            assert owners.setdefault(alias, known) == known
            tail = alias.split("/")[-1]
            assert tail in shipped_shape_names() or owners.setdefault(tail, known) == known
    assert len(shipped_shape_names()) >= 50


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # arXiv 2401.04088, abstract: 13B active
        ("mixtral-8x22b", 39.2),  # mistral.ai/news/mixtral-8x22b: 39B active
        ("qwen1.5-moe-a2.7b", 2.7),
        ("qwen3-30b-a3b", 3.35),  # Qwen3 blog: 3.3B activated
        ("qwen3-235b-a22b", 22.2),  # 22B activated
        ("deepseek-v2-lite", 2.66),  # arXiv 2405.04434: 2.4B, the output head not counted
        ("deepseek-v3", 37.55),  # arXiv 2412.19437: 37B, 671B in all
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    known = shipped_shape(name)
    assert known is not None
    assert known.shape.active_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_names_ignore_case_and_need_the_whole_name() -> None:
    assert shipped_shape("META-LLAMA/llama-2-7B-HF") == shipped_shape("llama-2-7b")
    assert shipped_shape(" Llama-2-7B ") == shipped_shape("llama-2-7b")
    assert shipped_shape("Yi-34B-Chat") == shipped_shape("01-ai/Yi-34B")
    assert shipped_shape("llama-2") is None
    assert shipped_shape("") is None
    assert shipped_shape("https:") is None


@pytest.mark.parametrize(
    ("name", "parameters", "hidden", "layers"),
    [("7B", 7 * 10**9, 4096, 32), ("13b", 13 * 10**9, 5120, 40), ("350M", 35 * 10**7, 1408, 11)],
)
def test_bare_sizes(name: str, parameters: int, hidden: int, layers: int) -> None:
    known = shipped_shape(name)
    assert known is not None
    assert known.parameters == parameters
    assert (known.shape.hidden_size, known.shape.layers) == (hidden, layers)


@pytest.mark.parametrize("name", ["0B", "B", "7", "-7B", "7BB", "7 tons", "9999999B"])
def test_no_size(name: str) -> None:
    assert shipped_shape(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma-2-9b", {"sliding_window": 4096, "full_attention_every": 2, "norms_per_block": 4,
                        "attention_softcap": True, "logit_softcap": True}),
        ("gemma-3-1b", {"sliding_window": 512, "full_attention_every": 6, "qk_norm": True}),
        ("mistral-7b", {"sliding_window": 4096, "full_attention_every": 1}),
        ("mistral-7b-v0.3", {"sliding_window": None}),
        ("gpt-oss-20b", {"sliding_window": 128, "full_attention_every": 2, "qkv_bias": True}),
        ("baichuan2-7b", {"alibi": False, "fused_qkv": True, "rotary_dim": None}),
        ("baichuan2-13b", {"alibi": True, "fused_qkv": True}),
        ("falcon-7b", {"kv_heads": 1, "parallel_residual": True, "norms_per_block": 1}),
        ("falcon-40b", {"kv_heads": 8, "parallel_residual": True, "norms_per_block": 2}),
        ("opt-30b", {"position_offset": 2, "residual_dropout": 0.1, "activation": "relu"}),
        ("phi-2", {"rotary_dim": 32, "head_bias": True, "parallel_residual": True}),
        ("pythia-6.9b", {"rotary_dim": 32, "parallel_residual": True, "norms_per_block": 2}),
        ("chatglm3-6b", {"kv_heads": 2, "rotary_dim": 64, "fused_gate_up": True}),
        ("qwen-7b", {"intermediate_size": 11008, "linear_names":
                     ("c_attn", "c_proj", "w2", "w1", "c_proj")}),
        ("bert-large-uncased", {"causal": False, "task": "classification", "labels": 2,
                                "final_norm": False, "embedding_norm": True, "pooler": True}),
        ("deepseek-v3", {"head_dim": 192, "value_dim": 128, "moe_layers": 58, "dense_layers": 3}),
        ("mpt-7b", {"learned_positions": True, "alibi": False, "norm_bias": True}),
        ("mpt-7b-alibi", {"learned_positions": False, "alibi": True, "norm_bias": False}),
        ("olmo-2-7b", {"qk_norm_whole": True, "qk_norm": False, "norm": "rms"}),
    ],
)  # fmt: skip
def test_what_activations_depend_on(name: str, expected: dict[str, object]) -> None:
    known = shipped_shape(name)
    assert known is not None
    assert {key: getattr(known.shape, key) for key in expected} == expected
