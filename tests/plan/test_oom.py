from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.artifacts import read_artifact
from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.units import GIB, KIB, MIB
from qdeploy.models.shape import ModelShape
from qdeploy.plan import PlanRequest
from qdeploy.plan.oom import Explanation, OomReport, explain, read_log, render_explanation
from qdeploy.plan.schema import PARTS

CAPACITY = round(79.15 * GIB)
HINT = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def size(count: int) -> str:
    """As c10's format_size prints it."""
    if count <= KIB:
        return f"{count} bytes"
    if count <= MIB:
        return f"{count / KIB:.2f} KiB"
    return f"{count / MIB:.2f} MiB" if count <= GIB else f"{count / GIB:.2f} GiB"


def on_device(count: int) -> int:
    """What the caching allocator asks the device for."""
    if count <= MIB:
        return 2 * MIB
    if count < 10 * MIB:
        return 20 * MIB
    total = 0
    while total < count:
        total += 2 * MIB
    return total


def message(
    tried: int,
    *,
    free: int = GIB,
    allocated: int = 76 * GIB,
    unallocated: int = 0,
    gpu: int = 0,
    processes: str | None = None,
    capacity: int = CAPACITY,
) -> str:
    """PyTorch's message since 2.2."""
    own = capacity - free
    held = processes or f"Including non-PyTorch memory, this process has {size(own)} memory in use."
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size(tried)}. GPU {gpu} "
        f"has a total capacity of {size(capacity)} of which {size(free)} is free. {held} Of the "
        f"allocated memory {size(allocated)} is allocated by PyTorch, and {size(unallocated)} is "
        f"reserved by PyTorch but unallocated.{HINT}"
    )


def traceback(*frames: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [f'  File "/opt/site-packages/x.py", line 7, in {frame.split("|")[0]}']
        lines += [f"    {frame.split('|')[1]}"]
    return "\n".join(lines) + "\n"


FORWARD = traceback("train|outputs = model(**batch)", "forward|x = self.layers(x)")
BACKWARD = traceback("train|self.accelerator.backward(loss)", "backward|loss.backward(**kwargs)")


@pytest.fixture
def log(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> OomReport:
        path = tmp_path / "train.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_log(path)

    return write


def near(found: int | None, expected: int) -> bool:
    """Equal to the two decimals of the message."""
    assert found is not None
    return abs(found - expected) <= (GIB if expected > GIB else MIB) // 200 + 1


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tried", [2 * MIB, 896 * MIB, GIB, GIB + 2 * MIB, round(31.65 * GIB)])
def test_current_message(log: Any, tried: int) -> None:
    text = message(tried, free=3 * GIB, allocated=70 * GIB, unallocated=5 * GIB, gpu=6)
    found = log(f"step 1\n{BACKWARD}{text}\n")
    assert (found.kind, found.backend, found.device) == ("device", "CUDA", 6)
    assert (found.phase, found.line, found.ranks) == ("backward", 7, 1)
    for value, expected in (
        (found.tried_bytes, tried),
        (found.free_bytes, 3 * GIB),
        (found.capacity_bytes, CAPACITY),
        (found.allocated_bytes, 70 * GIB),
        (found.reserved_bytes, 75 * GIB),
        (found.unallocated_bytes, 5 * GIB),
        (found.other_bytes, CAPACITY - 3 * GIB - 75 * GIB),
    ):
        assert near(value, expected)
    assert found.other_process_bytes is not None
    assert found.other_process_bytes <= 20 * MIB


def test_message_of_torch_2_1_with_its_misspelling(log: Any) -> None:
    found = log(
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total "
        "capacty of 14.75 GiB of which 1.66 GiB is free. Process 41 has 13.09 GiB memory in use. "
        "Of the allocated memory 10.09 GiB is allocated by PyTorch, and 1.92 GiB is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "max_split_size_mb to avoid fragmentation.\n"
    )
    assert found.capacity_bytes == round(14.75 * GIB)
    assert found.reserved_bytes == round(10.09 * GIB) + round(1.92 * GIB)
    assert found.other_process_bytes == 0  # In a container the process is listed by its number.


@pytest.mark.parametrize("backend", ["CUDA", "HIP", "NPU"])
def test_older_message(log: Any, backend: str) -> None:
    gpu = "NPU" if backend == "NPU" else "GPU"
    active = " 37.00 GiB current active;" if backend == "NPU" else ""
    found = log(
        f"RuntimeError: {backend} out of memory. Tried to allocate 2.00 GiB ({gpu} 3; 39.39 GiB "
        f"total capacity; 37.10 GiB already allocated;{active} 512.00 MiB free; 37.90 GiB "
        "reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb\n"
    )
    assert (found.backend, found.device, found.tried_bytes) == (backend, 3, 2 * GIB)
    assert found.capacity_bytes == round(39.39 * GIB)
    assert found.allocated_bytes == round(37.1 * GIB)
    assert found.free_bytes == 512 * MIB
    assert found.reserved_bytes == round(37.9 * GIB)


def test_free_of_zero_bytes_and_kibibytes(log: Any) -> None:
    assert log(message(2 * MIB, free=0)).free_bytes == 0
    assert log(message(2 * MIB, free=896 * KIB)).free_bytes == 896 * KIB
    assert "0 bytes is free" in message(2 * MIB, free=0)


def test_private_pools_allowed_memory_and_other_processes(log: Any) -> None:
    text = message(
        200 * MIB,
        processes="Process 9 has 30.00 GiB memory in use. Process 11 has 1.00 GiB memory in use. "
        "Including non-PyTorch memory, this process has 47.50 GiB memory in use. 40.00 GiB "
        "allowed;",
        allocated=46 * GIB,
    ).replace("by PyTorch, and", "by PyTorch, with 2.15 GiB allocated in private pools, and")
    found = log(text)
    assert found.other_process_bytes == 31 * GIB
    assert found.allowed_bytes == 40 * GIB
    assert found.allocated_bytes == 46 * GIB


def test_hip_lists_no_processes(log: Any) -> None:
    text = message(962 * MIB, processes=" ").replace("CUDA out", "HIP out")
    found = log(text)
    assert found.backend == "HIP"
    assert found.other_process_bytes is None
    assert (
        "PYTORCH_HIP_ALLOC_CONF"
        in explain(found.model_copy(update={"reserved_bytes": 78 * GIB})).change
    )


def test_warning_with_exact_bytes(log: Any) -> None:
    found = log(
        "[W801 09:08:57 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device "
        "2 while trying to allocate 580911104 bytes (free: 191430656, total: 42405855232).\n"
    )
    assert (found.device, found.tried_bytes) == (2, 580_911_104)
    assert (found.free_bytes, found.capacity_bytes) == (191_430_656, 42_405_855_232)


def test_message_wrapped_by_a_terminal(log: Any) -> None:
    text = message(170 * MIB, unallocated=8 * MIB)
    boxed = "\n".join(f"│ {text[i : i + 76]:<76} │" for i in range(0, len(text), 76))
    found = log(f"{BACKWARD}{boxed}\n│{' ' * 78}│\nmore\n")
    assert found.tried_bytes == 170 * MIB
    assert found.unallocated_bytes == 8 * MIB
    assert found.phase == "backward"


def test_message_cut_short_ends_at_an_empty_line(log: Any) -> None:
    found = log("RuntimeError: CUDA out of memory.\n\nTried to allocate 9.00 GiB\n")
    assert found.kind == "device"
    assert found.tried_bytes is None


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["[rank{}]:", "[default{}]:", "{}:", "node-{}:", "(w pid=1{})"])
def test_interleaved_ranks_and_the_worst(log: Any, style: str) -> None:
    ranks = [f"{BACKWARD if rank else FORWARD}{message(2 * GIB)}" for rank in range(4)]
    ranks[2] = traceback("step|self.optimizer.step()") + message(8 * GIB)
    columns = [text.split("\n") for text in ranks]
    lines = []
    for row in range(max(map(len, columns))):
        for rank, column in enumerate(columns):
            if row < len(column):
                lines.append(f"{style.format(rank)} {column[row]}")
    found = log("\n".join(lines) + "\n")
    assert found.ranks == 4
    assert found.tried_bytes == 8 * GIB
    assert found.phase == "step"


def test_ranks_without_prefixes_are_told_apart_by_gpu(log: Any) -> None:
    text = "\n".join(message(2 * GIB, gpu=gpu, free=gpu * GIB // 8) for gpu in (3, 0, 1, 0))
    found = log(text)
    assert (found.ranks, found.device) == (3, 0)  # The least was free on GPU 0.


def test_one_rank_that_says_it_twice_is_one(log: Any) -> None:
    text = message(2 * GIB)
    assert log(f"[rank5]: {text}\n[rank5]: {text}\n").ranks == 1


def test_kills_after_a_message_are_its_consequence(log: Any) -> None:
    found = log(f"{message(2 * GIB)}\n[ERROR] [launch.py:341] exits with return code = -9\n")
    assert (found.kind, found.line) == ("device", 1)


# --- what the run was doing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "phase", "operation"),
    [
        (["f|model = AutoModel.from_pretrained(name)", "convert|t.to(device)"], "load", None),
        (["f|model = prepare_model_for_kbit_training(model)"], "load", "upcast"),
        (
            ["forward|out = model(**x)", "ForCausalLMLoss|logits = logits.float()"],
            "forward",
            "logits",
        ),
        (
            ["forward|o = self.self_attn(x)", "forward|attn_weights = nn.functional.softmax(w)",
             "softmax|ret = input.softmax(dim, dtype=dtype)"],
            "forward", "eager_attention",
        ),
        (["forward|y = self.mlp(x)", "forward|self.down_proj(self.act_fn(x))"], "forward", "mlp"),
        (["t|loss.backward()", "_engine_run_backward|return Variable.run_backward()"], "backward",
         None),
        (
            ["t|self.accelerator.backward(loss)", "backward|self.engine.step()",
             "_take_model_step|self.optimizer.step()", "step|self.get_fp32_grad_partitions()"],
            "step", "gradient_copy",
        ),
        (
            ["i|deepspeed.initialize()", "_configure_zero_optimizer|optimizer = Stage3()",
             "__init__|self.initialize_optimizer_states()"],
            "step", "optimizer_states",
        ),
        (["i|deepspeed.initialize()", "__init__|self._create_fp32_partitions()"], "load",
         "master_weights"),
        (
            ["forward|self.layer(x)", "fetch_sub_module|self.__all_gather_params(params)"],
            "forward", "gather",
        ),
        (["evaluate|self.evaluation_loop()", "forward|model(**x)"], "evaluate", None),
        (["save_model|state = self.accelerator.get_state_dict()"], "save", None),
        (["main|run()"], "unknown", None),
    ],
)  # fmt: skip
def test_phase_and_operation(
    log: Any, frames: list[str], phase: str, operation: str | None
) -> None:
    found = log(traceback(*frames) + message(2 * GIB))
    assert (found.phase, found.operation) == (phase, operation)


def test_a_forward_pass_run_again_is_backward_with_checkpointing(log: Any) -> None:
    text = BACKWARD + (
        '  File "/opt/torch/utils/checkpoint.py", line 1, in unpack_hook\n'
        "    frame.recompute_fn(*args)\n"
        '  File "/opt/m.py", line 2, in forward\n    self.down_proj(x)\n'
    )
    found = log(text + message(2 * GIB))
    assert (found.phase, found.recomputes, found.operation) == ("backward", True, "mlp")
    assert "micro-batch" in explain(found).change
    assert "checkpointing" not in explain(found).change


def test_an_older_traceback_is_not_taken_for_this_one(log: Any) -> None:
    old = traceback("f|optimizer.step()") + "ValueError: caught\n"
    assert log(old + FORWARD + message(2 * GIB)).phase == "forward"


# --- host, pinned memory, libraries ---------------------------------------------------------------

CPU_ALLOCATOR = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 26951327744 bytes. Error code 12 (Cannot allocate)"
)
USAGE = (
    "[2023-05-24 10:02:10,993] [INFO] [utils.py:829:see_memory_usage] DeepSpeedZeRoOffload "
    "initialize [end]\n"
    "[2023-05-24 10:02:10,994] [INFO] [utils.py:834:see_memory_usage] MA 1.5 GB         Max_MA "
    "2.0 GB         CA 2.73 GB         Max_CA 3 GB \n"
    "[2023-05-24 10:02:10,994] [INFO] [utils.py:839:see_memory_usage] CPU Virtual Memory:  used = "
    "23.44 GB, percent = 24.8%\n"
)


@pytest.mark.parametrize(
    ("line", "certain", "tried"),
    [
        ("[ERROR] [launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return code = -9",
         False, None),
        ("torch.distributed.elastic.multiprocessing:failed (exitcode: -9) local_rank: 0 (pid: 8)",
         False, None),
        ("  traceback : Signal 9 (SIGKILL) received by PID 2198", False, None),
        ("Killed", False, None),
        ("train_7b.sh: line 12: 3456 Killed                  python train.py", False, None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", True, None),
        ("srun: error: node12: task 3: Out Of Memory", True, None),
        (CPU_ALLOCATOR, True, 26_951_327_744),
    ],
)  # fmt: skip
def test_host(log: Any, line: str, certain: bool, tried: int | None) -> None:
    found = log(f"{USAGE}Building extension module utils...\n{line}\n")
    assert (found.kind, found.certain, found.tried_bytes) == ("host", certain, tried)
    assert (found.phase, found.line) == ("load", 5)
    assert found.usage.label == "DeepSpeedZeRoOffload initialize [end]"
    assert found.usage.allocated_bytes == round(1.5 * GIB)
    assert found.usage.reserved_bytes == round(2.73 * GIB)
    assert found.usage.host_used_bytes == round(23.44 * GIB)
    assert found.usage.host_total_bytes / GIB == pytest.approx(23.44 / 0.248, abs=0.01)
    text = " ".join(explain(found).sentences)
    assert "23.4 GiB of about 94.5 GiB" in text
    assert ("most often" in text) is not certain
    assert "load one copy" in explain(found).change


def test_kernel_names_the_memory_of_the_process(log: Any) -> None:
    found = log(
        "[  510.9] Memory cgroup out of memory: Killed process 2343 (python3) total-vm:90kB, "
        "anon-rss:13925376kB, file-rss:0kB\n"
    )
    assert (found.kind, found.certain) == ("host", True)
    assert found.allocated_bytes == 13_925_376 * 1024


def test_killed_processes_are_counted(log: Any) -> None:
    lines = [f"failed (exitcode: -9) local_rank: {i} (pid: {90 + i})" for i in range(3)]
    lines += [f"  exitcode  : -9 (pid: {90 + i})" for i in range(3)]
    assert log("\n".join(lines)).ranks == 3


def test_shared_memory(log: Any) -> None:
    found = log(
        "RuntimeError: DataLoader worker (pid 249) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory. Please try to raise your shared "
        "memory limit.\n"
    )
    result = explain(found)
    assert (found.kind, result.cause) == ("host", "shared_memory")
    assert "--shm-size" in result.change


def test_pinned(log: Any) -> None:
    error = "RuntimeError: CUDA error: out of memory\n"
    pinned = log(traceback("pin_memory|return tensor.pin_memory()") + error)
    assert pinned.kind == "pinned"
    assert '"pin_memory": false' in explain(pinned).change
    assert log(FORWARD + error).kind == "device"


@pytest.mark.parametrize(
    ("line", "tried"),
    [
        ("node1:9:9 [0] include/alloc.h:320 NCCL WARN Cuda failure 2 'out of memory'", None),
        ("ncclUnhandledCudaError: Failed to CUDA calloc async 10485760 bytes", 10_485_760),
    ],
)
def test_nccl(log: Any, line: str, tried: int | None) -> None:
    found = log(BACKWARD + line + "\n")
    assert (found.kind, found.tried_bytes, found.phase) == ("nccl", tried, "backward")
    assert explain(found).cause == "framework"


def test_cublas(log: Any) -> None:
    found = log(
        FORWARD
        + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    )
    assert (found.kind, found.phase) == ("cublas", "forward")
    assert "vocabulary" in explain(found).sentences[0]


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "{'loss': 1.2}\nlr 1e-9, step 137\n",
        "tip: if you get CUDA out of memory, halve the batch\n",
        "Killed 3 stale workers\n",
        USAGE,
    ],
)
def test_a_log_without_a_message(log: Any, text: str) -> None:
    with pytest.raises(InputError, match="no out-of-memory message") as caught:
        log(text)
    assert "DefaultCPUAllocator" in (caught.value.hint or "")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_log(tmp_path / "none.log")
    with pytest.raises(InputError, match="cannot read"):
        read_log(tmp_path)


def test_junk_colours_and_progress_bars(log: Any) -> None:
    bar = b"\r".join(b" %d%%|\xe2\x96\x88 | %d/100" % (i, i) for i in range(100))
    coloured = f"\x1b[31m{message(2 * GIB)}\x1b[0m".encode()
    found = log(b"\xff\xfe\x00junk\n" + bar + b"\r" + coloured + b"\r\n")
    assert (found.tried_bytes, found.line) == (2 * GIB, 2)


def test_utf_16_of_a_redirected_powershell(log: Any) -> None:
    assert log((BACKWARD + message(3 * GIB)).encode("utf-16")).tried_bytes == 3 * GIB


@pytest.mark.parametrize("before", [0, 65_400, 65_536, 200_001])
def test_a_line_longer_than_a_piece(log: Any, before: int) -> None:
    found = log("x" * before + "\n" + "y" * 70_000 + "\n" + message(2 * GIB) + "\n")
    assert (found.line, found.tried_bytes) == (3, 2 * GIB)


@pytest.mark.parametrize("block", [700, 1000, 4096])
@pytest.mark.parametrize("ranks", [1, 3])
def test_blocks_of_any_size_read_the_same(
    log: Any, monkeypatch: pytest.MonkeyPatch, block: int, ranks: int
) -> None:
    text = "Loading weights 1/9\n" * 50
    for rank in range(ranks):
        said = BACKWARD + "    source line\n" * 90 + message((2 + rank) * GIB, gpu=rank)
        text += "\n".join(f"[rank{rank}]: {line}" for line in said.split("\n")) + "\n"
    text += "line after line\n" * 100
    whole = log(text)
    assert (whole.phase, whole.ranks, whole.tried_bytes) == ("backward", ranks, (1 + ranks) * GIB)
    assert text.split("\n")[whole.line - 1].startswith(f"[rank{ranks - 1}]: torch.OutOfMemory")
    monkeypatch.setattr("qdeploy.plan.oom.log._BLOCK_BYTES", block)
    assert log(text) == whole


def test_a_wrapped_message_with_carriage_returns(log: Any) -> None:
    text = message(170 * MIB, unallocated=8 * MIB)
    wrapped = "\r\n".join(text[i : i + 50] for i in range(0, len(text), 50))
    assert log(f"first\r\n{wrapped}\r\n").unallocated_bytes == 8 * MIB


def test_a_log_of_many_streams_and_lines(log: Any) -> None:
    lines = [f"host{i}: step" for i in range(5000)]
    assert log("\n".join([*lines, f"host9999: {message(2 * GIB)}"])).line == 5001


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
