"""What an out-of-memory message means, without and with a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.artifacts import read_artifact
from qdeploy.core.errors import UnknownNameError
from qdeploy.core.units import GIB, MIB
from qdeploy.models.shape import ModelShape
from qdeploy.plan import PlanRequest
from qdeploy.plan.oom import Explanation, explain, render_explanation
from qdeploy.plan.schema import PARTS

from .oom_logs import (
    BACKWARD,
    CAPACITY,
    FORWARD,
    USAGE,
    message,
    near,
    on_device,
    traceback,
)

# --- explanations without a plan ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unallocated", "cause"), [(2 * GIB, "fragmentation"), (2 * GIB - 2 * MIB, "activations")]
)
def test_fragmentation(log: Any, unallocated: int, cause: str) -> None:
    found = log(BACKWARD + message(2 * GIB, unallocated=unallocated, allocated=70 * GIB))
    found = found.model_copy(update={"reserved_bytes": 70 * GIB + unallocated})
    result = explain(found)
    assert result.cause == cause
    assert ("expandable_segments:True" in result.change) is (cause == "fragmentation")


def test_another_process_on_the_card(log: Any) -> None:
    processes = (
        "Process 33 has 51.56 GiB memory in use. Including non-PyTorch memory, this process has "
        "27.50 GiB memory in use."
    )
    found = log(
        FORWARD + message(170 * MIB, free=87 * MIB, processes=processes, allocated=26 * GIB)
    )
    result = explain(found)
    assert result.cause == "other_processes"
    assert "51.6 GiB" in result.sentences[0]
    assert "nvidia-smi" in result.change


def test_a_limit_set_by_the_run_itself(log: Any) -> None:
    text = message(2 * GIB, free=30 * GIB, allocated=40 * GIB).replace(
        "Of the alloc", "41.00 GiB allowed; Of the alloc"
    )
    result = explain(log(FORWARD + text))
    assert result.cause == "limit"
    assert "set_per_process_memory_fraction" in result.change


def test_memory_of_this_process_outside_of_pytorch(log: Any) -> None:
    result = explain(log(FORWARD + message(2 * GIB, allocated=50 * GIB)))
    assert result.cause == "framework"
    assert "28.2 GiB" in result.sentences[0] or "28.1 GiB" in result.sentences[0]


def test_a_process_that_a_container_hides(log: Any) -> None:
    # ms-swift#5943: 79.1 GiB, 2.6 free, 51.6 reserved, "this process has 0 bytes".
    text = message(
        round(2.63 * GIB), free=round(2.61 * GIB), allocated=round(48.15 * GIB),
        unallocated=round(0.49 * GIB),
        processes="Including non-PyTorch memory, this process has 0 bytes memory in use.",
    )  # fmt: skip
    result = explain(log(FORWARD + text))
    assert result.cause == "other_processes"
    assert "outside PyTorch's allocator" in result.sentences[0]


def test_context_and_nccl_are_no_other_process(log: Any) -> None:
    held = CAPACITY - GIB - 72 * GIB  # 6 GiB: below a tenth of the card.
    found = log(FORWARD + message(8 * GIB, allocated=72 * GIB, processes=" "))
    assert near(found.other_bytes, held)
    assert explain(found).cause == "activations"


@pytest.mark.parametrize(
    ("frames", "cause", "change"),
    [
        (["forward|loss = cross_entropy(logits)"], "logits", "use_liger_kernel"),
        (["forward|attn_weights = torch.matmul(q, k)"], "activations", "sdpa"),
        (["forward|self.up_proj(x)"], "activations", "gradient_checkpointing"),
        (["t|optimizer.step()", "_init_group|state['exp_avg'] = x"], "optimizer", "8-bit"),
        (["b|loss.backward()", "reduce|self.reduce_independent_p_g_buckets()"], "buffers",
         "reduce_bucket_size"),
        (["evaluate|self.evaluation_loop()"], "logits", "eval_accumulation_steps"),
        (["save_model|x"], "weights", "SHARDED_STATE_DICT"),
        (["main|x"], "unknown", "micro-batch"),
    ],
)  # fmt: skip
def test_cause_and_change_by_traceback(
    log: Any, frames: list[str], cause: str, change: str
) -> None:
    result = explain(log(traceback(*frames) + message(2 * GIB)))
    assert result.cause == cause
    assert change in result.change
    assert 1 <= len(result.sentences) <= 3
    assert result.per_gpu is None


# --- explanations against a plan ------------------------------------------------------------------


def request(**fields: Any) -> PlanRequest:
    whole = {"model": "llama-2-7b", "gpu": "A100-80GB", "gpus": 2, "strategy": "zero2",
             "offload": "none", "checkpointing": True}  # fmt: skip
    return PlanRequest(**{**whole, **fields})


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(("batch", "length"), [(1, 2049), (3, 2048), (7, 1001)])
def test_size_of_the_logits(log: Any, width: int, batch: int, length: int) -> None:
    tried = on_device(width * 32_000 * batch * length)
    found = log(traceback("forward|logits = logits.float()") + message(tried))
    result = explain(found, request(micro_batch=batch, seq_len=length))
    assert result.cause == "logits"
    assert result.tensor is not None
    assert f"logits of {batch * length:,} tokens ({width} x 32,000 each)" in result.tensor


def test_size_of_the_eager_attention_matrix(log: Any) -> None:
    # 2 bytes x 2 sequences x 32 heads x 4096 x 4096 tokens.
    found = log(FORWARD + message(on_device(2 * 2 * 32 * 4096 * 4096)))
    result = explain(
        found, request(micro_batch=2, seq_len=4096, attention="eager", checkpointing=False)
    )
    assert result.cause == "activations"
    assert result.tensor is not None
    assert "16-bit attention matrix of a layer (32 heads x 4,096 x 4,096 tokens)" in result.tensor


def test_size_of_the_optimizer_partition(log: Any) -> None:
    parameters = 6_738_415_616  # Llama-2-7B
    tried = on_device(4 * parameters // 2)
    frames = traceback("i|deepspeed.initialize()", "__init__|self.initialize_optimizer_states()")
    result = explain(log(frames + message(tried)), request())
    assert (result.report.phase, result.cause) == ("step", "optimizer")
    assert result.tensor == "an FP32 copy or state of the 6,738,415,616 trained parameters / 2 GPUs"


@pytest.mark.parametrize("tried", [2 * MIB, 20 * MIB])
def test_small_sizes_name_no_tensor(log: Any, tried: int) -> None:
    # 20 MiB is asked for anything of 1 to 10 MiB: 4 x 4096 x 512 bytes are 8 MiB.
    assert on_device(4 * 4096 * 512) == 20 * MIB
    result = explain(log(FORWARD + message(tried)), request(seq_len=512))
    assert result.tensor is None
    assert "small request" in result.sentences[0]
    assert result.cause == result.largest_part


def test_a_size_that_the_traceback_contradicts_is_not_named(log: Any) -> None:
    tried = on_device(4 * 32_000 * 2048)  # The FP32 logits, but in an MLP.
    result = explain(log(traceback("forward|self.up_proj(x)") + message(tried)), request())
    assert result.tensor is None
    assert result.cause == "activations"


def test_the_plan_names_layout_and_largest_parts(log: Any) -> None:
    result = explain(log(BACKWARD + message(2 * GIB)), request(gpu="A100-40GB"))
    assert result.layout == "zero2, with checkpointing"
    assert result.per_gpu is not None
    parts = {part: getattr(result.per_gpu, f"{part}_bytes") for part in PARTS}
    assert result.largest_part == max(parts, key=lambda name: parts[name])
    assert "its largest parts are" in result.sentences[1]
    # 2P + 18P/2 are 69 GiB: more than layout and kernels can save on 40 GB.
    assert result.change.startswith("--")


def test_an_open_layout_is_taken_by_what_the_log_shows(log: Any) -> None:
    # ZeRO-2 of Llama-2-7B on 4 GPUs holds 2P + 16P/4 = 37.7 GiB of states; ZeRO-1 and DDP more.
    text = message(2 * GIB, allocated=50 * GIB, processes=" ")
    result = explain(log(BACKWARD + text), request(gpus=4, strategy=None, checkpointing=None))
    assert "nearest to the log" in result.sentences[1]
    assert result.layout is not None
    assert not result.layout.startswith("ddp")


def test_a_run_that_the_plan_says_fits(log: Any) -> None:
    text = FORWARD + message(2 * GIB)
    result = explain(log(text), request(gpus=8, strategy="zero3", seq_len=512))
    assert "By the plan this fits" in result.sentences[-1]


def test_a_plan_for_another_gpu_is_noticed(log: Any) -> None:
    text = FORWARD + message(2 * GIB, capacity=round(39.39 * GIB), allocated=37 * GIB)
    result = explain(log(text), request(gpus=8, strategy="zero3"))
    assert result.sentences[-1] == "But the log's GPU has 39.4 GiB."


def test_the_change_of_layout_is_named(log: Any) -> None:
    # One card cannot hold the 16P = 100 GiB of states; ZeRO on four can.
    result = explain(log(FORWARD + message(2 * GIB)), request(gpus=4, strategy="ddp", loss="liger"))
    assert result.change.startswith("--strategy zero")


def test_fragmentation_of_a_layout_that_is_too_large_anyway(log: Any) -> None:
    text = message(2 * GIB, allocated=70 * GIB, unallocated=4 * GIB)
    result = explain(log(BACKWARD + text), request(gpus=1, strategy="none"))
    assert "expandable_segments" in result.change
    assert "Even so" in result.sentences[-1]


def test_a_wrong_request_is_refused(log: Any) -> None:
    with pytest.raises(UnknownNameError):
        explain(log(message(2 * GIB)), request(gpu="Z9"))


def test_softmax_of_galactica_30b(log: Any) -> None:
    # deepspeed#2899: ZeRO-3 over 16 A100, 896 MiB for a softmax in FP32 at 76.7 GiB.
    galactica = ModelShape(
        name="galactica-30b", family="opt", layers=48, hidden_size=7168, heads=56, kv_heads=56,
        head_dim=128, intermediate_size=28_672, vocab_size=50_000, max_positions=2048,
        gated_mlp=False, norm="layer", learned_positions=True, tied_embeddings=True,
    )  # fmt: skip
    lines = traceback(
        "training_step|loss = self.compute_loss(model, inputs)",
        "forward|hidden_states, self_attn_weights, _ = self.self_attn(",
        "forward|attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32)",
        "softmax|ret = input.softmax(dim, dtype=dtype)",
    ) + (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB (GPU 2; "
        "79.20 GiB total capacity; 75.90 GiB already allocated; 300.00 MiB free; 76.70 GiB "
        "reserved in total by PyTorch)"
    )
    text = "\n".join(f"gpu-q-49: {line}" for line in lines.split("\n"))
    found = log(text)
    assert found.tried_bytes == 4 * 56 * 2048 * 2048
    assert explain(found).cause == "activations"
    assert 'attn_implementation="sdpa"' in explain(found).change
    result = explain(
        found,
        request(model=galactica, gpus=4, nodes=4, strategy="zero3", attention="eager",
                checkpointing=False),
    )  # fmt: skip
    assert result.tensor is not None
    assert "FP32 attention matrix of a layer (56 heads" in result.tensor


def test_killed_7b_on_a_host_of_94_gib(log: Any) -> None:
    # deepspeed#3606: ZeRO-3 with all offloaded takes 160 to 180 GB of the host.
    found = log(USAGE + "[INFO] [launch.py:315:sigkill_handler] Killing subprocess 10\n"
                "['python', '-u', 'pretrain.py'] exits with return code = -9\n")  # fmt: skip
    result = explain(
        found, request(model="llama-7b", gpu="A100-40GB", gpus=1, strategy="zero3", offload="all")
    )
    assert result.cause == "host"
    assert "more than the host's 94.5 GiB" in result.sentences[-1]
    assert result.change


def test_two_v100_with_7b(log: Any) -> None:
    # LLaMA-Factory#2931: 18P/2 are 56 GiB a card of 32.
    text = message(2 * GIB, allocated=29 * GIB, capacity=round(31.74 * GIB))
    frames = traceback("_configure_zero_optimizer|x", "__init__|self._create_fp32_partitions()")
    result = explain(
        log(frames + text),
        request(model="llama-7b", gpu="V100-32GB", strategy="zero3", seq_len=1024,
                precision="fp16"),
    )  # fmt: skip
    assert result.cause == "master_weights"
    assert result.per_gpu is not None
    assert result.per_gpu.total_bytes > 32 * GIB
    assert "--" in result.change


# --- output ---------------------------------------------------------------------------------------


def test_json_and_lines(log: Any, tmp_path: Path) -> None:
    found = log("Übung\n" + BACKWARD + message(2 * GIB, unallocated=GIB))
    result = explain(found, request())
    path = tmp_path / "oom.json"
    result.write(path)
    assert read_artifact(path, Explanation) == result
    data = json.loads(result.to_json())
    assert data["schema"] == "qdeploy.oom/1"
    assert data["inputs"]["log"] == found.log_sha256
    lines = render_explanation(result)
    assert lines[0].endswith("train.log:7: out of GPU memory on GPU 0, phase backward")
    assert lines[1].startswith("tried 2.0 GiB, free 1.0 GiB of 79.2 GiB, in tensors 76.0 GiB")
    assert lines[-1] == f"the smallest change: {result.change}."
