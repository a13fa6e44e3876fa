from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from qdeploy.core.errors import RunError
from qdeploy.core.schema import validate
from qdeploy.core.units import MIB
from qdeploy.train.callbacks import RunContext, callbacks
from qdeploy.train.callbacks.blame import first_bad_tensor
from qdeploy.train.callbacks.events import Ended, Grew, Logged, Scaled, Started, Stepped, parse
from qdeploy.train.callbacks.log import Log
from qdeploy.train.callbacks.nonfinite import NonFinite, blocks, judged
from qdeploy.train.callbacks.phases import Phases, tensors
from qdeploy.train.callbacks.precision import Precision
from qdeploy.train.callbacks.ranks import all_ranks
from qdeploy.train.callbacks.resident import KernelPeak, SampledPeak, given_out_bytes
from qdeploy.train.dry_run import dry_run
from qdeploy.train.recipe import Recipe

ROWS = [[5, 6, 7, 8, 9, 10], [5, 6, 7], [11, 12, 13, 14], [5]]


def context_of(model: Path, out: Path, rank: int = 0, **fields: Any) -> RunContext:
    data = {
        "model": str(model), "data": {"path": "unread", "seq_len": 16},
        "hardware": {"gpu": "cpu"}, "strategy": {"name": "none", "offload": "none"},
        "precision": "fp32", "checkpointing": {"enabled": False}, "out": str(out), **fields,
    }  # fmt: skip
    made = dry_run(validate(Recipe, data, "recipe"))
    return RunContext(made.recipe, made.candidate, None, out, rank, 1, "cpu")


def batch(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    ids = [row["input_ids"] for row in rows]
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    return {
        "input_ids": padded,
        "attention_mask": mask,
        "labels": padded.masked_fill(mask == 0, -100),
    }


def train(
    model: torch.nn.Module, out: Path, watching: list[Any], checkpointing: bool = False
) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints"), max_steps=2, per_device_train_batch_size=1,
        gradient_accumulation_steps=2, use_cpu=True, report_to=[], save_strategy="no",
        logging_steps=1, disable_tqdm=True, activation_checkpointing=checkpointing,
        dataloader_pin_memory=False, train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row} for row in ROWS],
        data_collator=batch,
        callbacks=watching,
    )
    trainer.train()
    return trainer


def load(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()


def events_of(context: RunContext) -> Iterator[Any]:
    for line in context.log_path.read_text(encoding="utf-8").splitlines():
        yield parse(line, "the log")


def test_a_run_leaves_its_log(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = context_of(tiny_llama, tmp_path / "包裹")
    watching = callbacks(context)
    train(load(tiny_llama), tmp_path, watching)
    found = list(events_of(context))
    assert isinstance(found[0], Started)
    assert found[0].planned["step"] <= context.planned.per_gpu.total_bytes
    assert max(found[0].planned.values()) == context.planned.per_gpu.total_bytes
    steps = [event for event in found if isinstance(event, Stepped)]
    assert [step.tokens for step in steps] == [
        len(ROWS[0]) + len(ROWS[1]), len(ROWS[2]) + len(ROWS[3]),
    ]  # fmt: skip
    assert all(step.seconds > 0 for step in steps)
    grown = [event for event in found if isinstance(event, Grew)]
    assert set(grown[-1].peaks) == {"load", "forward", "backward", "step", "between"}
    assert all(peak.resident_bytes > 50 * MIB for peak in grown[-1].peaks.values())
    assert [event.step for event in found if isinstance(event, Logged)] == [1, 2]
    assert isinstance(found[-1], Ended)
    said = " ".join(capsys.readouterr().err.split())
    assert "memory after the first step: the run will fit" in said
    assert "memory of rank 0: load" in said


@pytest.mark.parametrize("checkpointing", [False, True])
def test_phases_follow_each_other(tiny_llama: Path, tmp_path: Path, checkpointing: bool) -> None:
    entered: list[str] = []
    model = load(tiny_llama)
    phases = Phases(entered.append)
    phases.watch(model)
    trainer = train(model, tmp_path, [], checkpointing)
    assert entered == ["forward", "backward", "step"] * 4
    with torch.no_grad():
        model(torch.tensor([[5, 6]]))
    model.eval()
    model(torch.tensor([[5, 6]]))
    phases.close()
    model.train()
    model(torch.tensor([[5, 6]]))
    assert len(entered) == 12
    assert trainer.state.global_step == 2


def test_hooks_are_gone_after_training(tiny_llama: Path, tmp_path: Path) -> None:
    model = load(tiny_llama)
    train(model, tmp_path, callbacks(context_of(tiny_llama, tmp_path)))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def stopped(model: torch.nn.Module, context: RunContext) -> str:
    with pytest.raises(RunError) as caught:
        train(model, context.out, [NonFinite(context)])
    assert caught.value.exit_code == 1
    assert "there is no checkpoint yet" in (caught.value.hint or "")
    return caught.value.message


def test_a_bad_parameter_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    model = load(tiny_llama)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    message = stopped(model, context_of(tiny_llama, tmp_path))
    assert message.startswith("step 1, rank 0: the loss is not finite")
    assert "the parameter model.layers.1.mlp.up_proj.weight" in message


def test_a_bad_activation_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    model = load(tiny_llama)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(3e38).clamp_(-3e38, 3e38)
        model.model.layers[0].mlp.up_proj.weight.mul_(1e6)
    message = stopped(model, context_of(tiny_llama, tmp_path))
    assert "the activation that model.layers.0.mlp.down_proj returns" in message


class NanBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * float("nan")


class Spoils(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NanBackward.apply(self.inner(x))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_bad_gradient_names_the_block_that_made_it(
    tiny_llama: Path, tmp_path: Path, checkpointing: bool
) -> None:
    model = load(tiny_llama)
    model.model.layers[1].mlp = Spoils(model.model.layers[1].mlp)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RunError) as caught:
        train(model, tmp_path, [NonFinite(context_of(tiny_llama, tmp_path))], checkpointing)
    assert "output of model.layers.0, made by the backward pass in model.layers.1" in str(
        caught.value
    )
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_bad_gradient_behind_the_blocks(tiny_llama: Path, tmp_path: Path) -> None:
    model = load(tiny_llama)
    model.model.norm = Spoils(model.model.norm)
    message = stopped(model, context_of(tiny_llama, tmp_path))
    assert "output of model.layers.1, made by the backward pass behind model.layers.1" in message


def test_what_slips_through_shows_in_the_norm(tiny_llama: Path, tmp_path: Path) -> None:
    watching = NonFinite(context_of(tiny_llama, tmp_path))
    arguments: Any = (None, SimpleNamespace(global_step=7), None)
    watching.on_log(*arguments, logs={"grad_norm": 3.5})
    watching.on_log(*arguments, logs={"loss": 1.0})
    with pytest.raises(RunError, match="step 7, rank 0: the gradient norm is nan"):
        watching.on_log(*arguments, logs={"grad_norm": float("nan")})


def test_blame_finds_nothing_in_a_good_pass_and_leaves_no_hook(tiny_llama: Path) -> None:
    model = load(tiny_llama)
    assert first_bad_tensor(model, (torch.tensor([[5, 6]]),), {}, whole=False) is None
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("whole", [False, True])
def test_blame_names_the_first_of_several(tiny_llama: Path, whole: bool) -> None:
    model = load(tiny_llama)
    passes: list[int] = []
    model.lm_head.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[0] = float("inf")
    found = first_bad_tensor(model, (torch.tensor([[5, 6]]),), {}, whole=whole)
    assert found == "the parameter model.layers.0.input_layernorm.weight, before it is used"
    assert len(passes) == int(whole)


def test_blocks_are_the_outermost_lists() -> None:
    expert = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    block = torch.nn.ModuleDict({"experts": expert})
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([block])})
    assert [name for name, _ in blocks(model)] == ["layers.0"]


def test_judged() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    assert judged({"loss": one, "logits": two}) is one
    assert judged({"loss": None, "logits": two}) is two
    assert judged((one, two)) is one
    assert judged({}) is None
    assert list(tensors({"a": (one, [two]), "b": None})) == [one, two]


def scaling(skips: list[bool], scales: list[float], context: RunContext) -> None:
    watching = Precision(context, Log(context))
    for step, (skipped, scale) in enumerate(zip(skips, scales, strict=True), start=1):
        optimizer = SimpleNamespace(
            step_was_skipped=skipped, optimizer=SimpleNamespace(loss_scale=scale)
        )
        arguments: Any = (None, SimpleNamespace(global_step=step), None)
        watching.on_optimizer_step(*arguments, optimizer=optimizer)
        watching.on_step_end(*arguments, optimizer=optimizer)


def fp16_context(model: Path, out: Path, rank: int = 0) -> RunContext:
    plain = context_of(model, out, rank)
    recipe = plain.recipe.model_copy(update={"precision": "fp16"})
    return RunContext(recipe, plain.planned, None, out, rank, 1, "cpu")


def test_the_loss_scale_is_written_by_one_rank(tiny_llama: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        scaling([False, True, False], [8.0, 4.0, 4.0], fp16_context(tiny_llama, tmp_path, rank))
    assert list(events_of(fp16_context(tiny_llama, tmp_path))) == [
        Scaled(step=1, scale=8.0, skipped=False),
        Scaled(step=2, scale=4.0, skipped=True),
        Scaled(step=3, scale=4.0, skipped=False),
    ]
    assert not fp16_context(tiny_llama, tmp_path, 1).log_path.exists()


def test_a_scale_below_the_minimum_stops(tiny_llama: Path, tmp_path: Path) -> None:
    scaling([True], [1.0], fp16_context(tiny_llama, tmp_path))
    with pytest.raises(RunError, match="step 2: gradients are infinite even at a loss scale of 1"):
        scaling([True, True], [1.0, 0.5], fp16_context(tiny_llama, tmp_path))


def test_a_grad_scaler_is_read(tiny_llama: Path, tmp_path: Path) -> None:
    context = fp16_context(tiny_llama, tmp_path)
    watching = Precision(context, Log(context))
    scaler = SimpleNamespace(get_scale=lambda: 1024.0)
    optimizer = SimpleNamespace(step_was_skipped=False, scaler=scaler)
    arguments: Any = (None, SimpleNamespace(global_step=1), None)
    watching.on_step_end(*arguments, optimizer=optimizer)
    assert list(events_of(context)) == [Scaled(step=1, scale=1024.0, skipped=False)]


def test_a_log_goes_on_after_half_a_line(tiny_llama: Path, tmp_path: Path) -> None:
    context = context_of(tiny_llama, tmp_path)
    context.log_path.parent.mkdir()
    context.log_path.write_text('{"event":"ste', encoding="utf-8")
    log = Log(context)
    log.write(Ended(time=1.0, step=1))
    log.write(Ended(time=2.0, step=2))
    lines = context.log_path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines[1:]] == [1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_stops_with_one_error(tiny_llama: Path, tmp_path: Path) -> None:
    context = context_of(tiny_llama, tmp_path)
    context.log_path.parent.mkdir()
    context.log_path.symlink_to("/dev/full")
    with pytest.raises(RunError, match="No space left"):
        Log(context).write(Ended(time=1.0, step=1))


@pytest.mark.parametrize("method", [KernelPeak, SampledPeak])
def test_the_resident_peak_is_that_since_it_was_forgotten(method: Callable[[], Any]) -> None:
    peak = method()
    peak.forget()
    start = peak.peak_bytes()
    block = torch.ones(64 * MIB, dtype=torch.uint8)
    high = peak.peak_bytes()
    assert high - start >= 60 * MIB
    del block
    # The kernel counts in batches for each processor.
    assert peak.peak_bytes() >= high - MIB
    peak.forget()
    assert peak.peak_bytes() <= high - 60 * MIB


def test_the_allocator_says_what_it_gave_out() -> None:
    before = given_out_bytes()
    if before is None:
        pytest.skip("no glibc of 2.33 or later")
    block = torch.ones(64 * MIB, dtype=torch.uint8)
    after = given_out_bytes()
    assert after is not None
    assert 64 * MIB <= after - before < 66 * MIB
    del block


def test_one_process_is_all_ranks() -> None:
    assert all_ranks(7, "cpu") == [7]
