"""Finding out-of-memory messages in logs, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.units import GIB, KIB, MIB
from qdeploy.plan.oom import explain, read_log

from .oom_logs import (
    BACKWARD,
    CAPACITY,
    CPU_ALLOCATOR,
    FORWARD,
    USAGE,
    message,
    near,
    traceback,
)

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
