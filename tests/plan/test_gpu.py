from __future__ import annotations

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.plan.gpu import GpuCount, find_gpu, gpu_names, parse_gpus


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_is_sane(name: str) -> None:
    gpu, digest = find_gpu(name)
    assert gpu.name == name
    assert len(digest) == 64
    assert gpu.source
    assert gpu.memory_source
    # Usable memory lies a little under or over the decimal marketing number, never at 1.1 of it.
    assert 0.92 < gpu.memory_bytes / (gpu.marketing_gb * 10**9) < 1.08
    assert gpu.has_bf16 == (gpu.bf16_tflops is not None)
    for alias in gpu.aliases:
        assert find_gpu(alias) == (gpu, digest)
        assert find_gpu(alias.lower().replace(" ", "_")) == (gpu, digest)


def test_no_alias_belongs_to_two() -> None:
    seen: dict[str, str] = {}
    for name in gpu_names():
        for alias in (name, *find_gpu(name)[0].aliases):
            assert seen.setdefault(alias.casefold(), name) == name
    assert len(gpu_names()) >= 16


def test_substrings_do_not_match() -> None:
    assert find_gpu("L40")[0].name == "L40"
    assert find_gpu("L4")[0].name == "L4"
    assert find_gpu("L40S")[0].name == "L40S"
    with pytest.raises(UnknownNameError):
        find_gpu("A4000")


def test_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as error:
        find_gpu("A100-80G")
    assert error.value.hint is not None
    assert "did you mean 'A100-80GB'?" in error.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2xA100-80GB", GpuCount(2, "A100-80GB")),
        ("16 X RTX 4090", GpuCount(16, "RTX 4090")),
        ("L4", GpuCount(1, "L4")),
        (" 1xT4 ", GpuCount(1, "T4")),
    ],
)
def test_parse(text: str, expected: GpuCount) -> None:
    assert parse_gpus(text) == expected


@pytest.mark.parametrize("text", ["", "  ", "0xA100-80GB", "00xT4"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(InputError):
        parse_gpus(text)


def test_bf16_by_capability() -> None:
    have = {name for name in gpu_names() if find_gpu(name)[0].has_bf16}
    assert set(gpu_names()) - have == {"V100-16GB", "V100-32GB", "T4"}
