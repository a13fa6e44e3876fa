from __future__ import annotations

import re

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.plan.gpu import Gpu, GpuCount, find_gpu, gpu_names, parse_gpus, parse_mixed

GPUS = {name: find_gpu(name)[0] for name in gpu_names()}
OLDER = {
    *("P100-16GB", "P100-16GB-PCIe", "V100-16GB", "V100-16GB-PCIe", "V100-32GB"),
    *("V100-32GB-PCIe", "V100S-32GB", "T4", "RTX-2080-Ti", "TITAN-RTX"),
    *("Quadro-RTX-6000", "Quadro-RTX-8000"),
}
"""Pascal, Volta and Turing: no BF16."""
HALF_RATE = {name for name, gpu in GPUS.items() if "half rate" in gpu.source}
"""FP16 products accumulated in FP32 at half the rate: GeForce."""


def test_there_are_enough() -> None:
    assert len(GPUS) >= 45


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_usable_memory(name: str) -> None:
    gpu = GPUS[name]
    # The marketing number is decimal with HBM and binary with GDDR; usable is near, never above.
    assert 0.92 < gpu.memory_bytes / (gpu.marketing_gb * 10**9) < 1.07
    assert gpu.memory_mib < gpu.marketing_gb * 1024
    assert gpu.memory_bytes == gpu.memory_mib * 1024 * 1024


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_what_its_source_says(name: str) -> None:
    gpu = GPUS[name]
    source = gpu.memory_source
    if same := re.match(r"as ([\w-]+)", source):
        assert gpu.memory_mib == GPUS[same[1]].memory_mib
    elif mebibytes := re.match(r"(\d+) MiB\b", source):
        assert gpu.memory_mib == int(mebibytes[1])
    else:
        gibibytes = re.match(r"([\d.]+) GiB\b", source)
        assert gibibytes
        # What was printed to 0.01 GiB, never more: half a step is 5 MiB.
        assert -6 < gpu.memory_mib - float(gibibytes[1]) * 1024 <= 0


@pytest.mark.parametrize("name", GPUS)
def test_speeds_are_those_of_the_generation(name: str) -> None:
    gpu = GPUS[name]
    capability = gpu.compute_capability
    assert capability in {(6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0),
                          (10, 3), (12, 0)}  # fmt: skip
    assert gpu.fp32_tflops is not None
    assert gpu.fp32_tflops < gpu.fp16_tflops
    assert gpu.has_bf16 == (capability[0] >= 8) == (name not in OLDER)
    assert gpu.bf16_tflops == (gpu.fp16_tflops if gpu.has_bf16 else None)
    assert (gpu.int8_tops is not None) == (capability >= (7, 5)), "IMMA came with Turing"
    assert (gpu.fp8_tflops is not None) == (capability >= (8, 9)), "FP8 came with Ada and Hopper"
    if gpu.fp8_tflops is not None:
        assert gpu.fp8_tflops == pytest.approx(2 * gpu.fp16_tflops, rel=0.03)
    if gpu.int8_tops is not None and capability != (10, 3):
        times = 4 if name in HALF_RATE else 2
        assert gpu.int8_tops == pytest.approx(times * gpu.fp16_tflops, rel=0.03)


def test_speeds_are_dense() -> None:
    """Datasheets print twice these with sparsity, and GeForce's twice again in FP16."""
    assert GPUS["A100-80GB"].fp16_tflops == 312
    assert GPUS["H100-80GB"].fp16_tflops == 989
    assert GPUS["L40S"].fp16_tflops == 362
    assert GPUS["RTX-4090"].fp16_tflops == 165.2
    assert GPUS["B300-288GB"].int8_tops == 150
    assert {name for name in GPUS if re.match(r"RTX-[2345]0\d0", name)} - HALF_RATE == {
        "RTX-4000-Ada", "RTX-5000-Ada"
    }  # fmt: skip


@pytest.mark.parametrize("name", GPUS)
def test_links(name: str) -> None:
    gpu = GPUS[name]
    superchip = name.startswith(("GH200", "GB200"))
    assert gpu.pcie_gb_s in ({450, 900} if superchip else {32, 64, 128})
    assert gpu.nvlink_gb_s is None or gpu.nvlink_gb_s >= 160
    if "PCIe" in name or "NVL" in name:
        assert gpu.nvlink_gb_s is None
    assert gpu.memory_bandwidth_gb_s >= 200
    assert gpu.source


def test_aliases_are_unique_and_resolve() -> None:
    seen: dict[str, str] = {}
    for name in gpu_names():
        gpu, digest = find_gpu(name)
        assert gpu.name == name
        assert len(digest) == 64
        for alias in (name, *gpu.aliases):
            plain = "".join(letter for letter in alias.lower() if letter not in " -_")
            assert seen.setdefault(plain, alias) == alias, "an alias that another one covers"
            assert find_gpu(alias) == find_gpu(alias.upper()) == (gpu, digest)
            assert find_gpu(f" {alias.lower().replace(' ', '_')} ") == (gpu, digest)
            assert find_gpu(plain) == (gpu, digest)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("Tesla V100-PCIE-32GB", "V100-32GB-PCIe"),
        ("Tesla P100-PCIE-16GB", "P100-16GB-PCIe"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090 D", "RTX-4090-D"),
        ("4090D", "RTX-4090-D"),
        ("NVIDIA GeForce RTX 3080", "RTX-3080-10GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA H20-3e", "H20-141GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA B300 SXM6 AC", "B300-288GB"),
        ("ＲＴＸ　４０９０", "RTX-4090"),
    ],
)
def test_names_that_drivers_print(printed: str, name: str) -> None:
    assert find_gpu(printed)[0].name == name


@pytest.mark.parametrize("name", ["L4", "L40", "L40S", "A40", "A4000", "A10", "A10G", "A2", "L20"])
def test_substrings_do_not_match(name: str) -> None:
    assert find_gpu(name)[0].name == name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100-80G", "did you mean 'A100-80GB' or "),
        ("A100", "did you mean 'A100-40GB' or 'A100-80GB' or "),
        ("RTX 6000", "'Quadro-RTX-6000'"),
        ("RTX 4060 Ti", "did you mean 'RTX-4060-Ti-16GB' or "),
        ("GeForce RTX 4090Ti", "'RTX-4090'"),
        ("MI300X", "choices: A10, A100-40GB, "),
        ("", "choices: A10, A100-40GB, "),
    ],
)
def test_unknown_gpu_names_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        find_gpu(name)
    assert error.value.hint is not None
    assert meant in error.value.hint
    assert error.value.hint.endswith(gpu_names()[-1])


@pytest.mark.parametrize("count", [1, 2, 7, 16, 999_999])
@pytest.mark.parametrize("times", ["x", "X", "×", " x ", "*", "ｘ"])
@pytest.mark.parametrize("name", ["A100-80GB", "RTX 4090", "3090", "GTX 1080", "RTX4090", "T4"])
def test_parse(count: int, times: str, name: str) -> None:
    assert parse_gpus(f" {count}{times}{name} ") == GpuCount(count, name)
    assert parse_gpus(name) == GpuCount(1, name)


@pytest.mark.parametrize(
    "text",
    ["", "  ", "x", "0xA100-80GB", "00xT4", "8x", "-2xT4", "2.5xT4", "T4x2", "T4 × 2", "4090x2",
     "2x2xT4", "9999999xT4", "2xT4,1xL4", "T4，L4"],
)  # fmt: skip
def test_parse_refuses(text: str) -> None:
    with pytest.raises(InputError) as error:
        find_gpu(parse_gpus(text).name)
    assert error.value.hint


def _by_hand(kinds: list[tuple[int, str]]) -> GpuCount:
    """One card after the other; the smallest is the one that no other is smaller than."""
    cards: list[Gpu] = []
    for count, name in kinds:
        for _ in range(count):
            cards.append(GPUS[name])
    smallest = cards[0]
    for card in cards:
        if card.memory_mib < smallest.memory_mib:
            smallest = card
    return GpuCount(len(cards), smallest.name)


@pytest.mark.parametrize(
    "kinds",
    [
        [(2, "A100-80GB"), (4, "L40S")],
        [(4, "L40S"), (2, "A100-80GB")],
        [(1, "RTX-3090"), (1, "RTX-4090"), (3, "RTX-4080")],
        [(1, "V100-32GB"), (5, "T4")],
        [(1, "A10"), (1, "A10"), (1, "A30")],
    ],
)
@pytest.mark.parametrize("comma", [",", ", ", "，", "、"])
def test_mixed_cards_are_planned_by_the_smallest(kinds: list[tuple[int, str]], comma: str) -> None:
    together, warning = parse_mixed(comma.join(f"{count}x{name}" for count, name in kinds))
    assert together == _by_hand(kinds)
    assert warning is not None
    assert f"memory of the smallest card, {together.name} (" in warning
    assert warning.endswith("the slowest sets the pace")


def test_one_kind_adds_up_without_a_warning() -> None:
    assert parse_mixed("2xA100-80GB") == (GpuCount(2, "A100-80GB"), None)
    assert parse_mixed("not looked up") == (GpuCount(1, "not looked up"), None)
    assert parse_mixed("2xA100-80GB,2xA100-80GB") == (GpuCount(4, "A100-80GB"), None)
    assert parse_mixed("A100-80GB,3xNVIDIA A100-SXM4-80GB") == (GpuCount(4, "A100-80GB"), None)


def test_mixed_precisions_are_refused() -> None:
    with pytest.raises(InputError, match="A30, L4 can train in BF16 and T4 cannot"):
        parse_mixed("1xA30,2xT4,2xL4")


@pytest.mark.parametrize("text", [",", "2xT4,", ",2xT4", "2xT4,,2xT4", "2xT4,0xT4", "2xT4,8x"])
def test_mixed_refuses_malformed_text(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_mixed(text)
    assert error.value.hint


def test_mixed_refuses_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="unknown GPU 'T5'"):
        parse_mixed("2xT4,2xT5")
