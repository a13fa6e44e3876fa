"""Whole runs of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdeploy.models.checkpoint import open_checkpoint

Fields = dict[str, Any]
Write = Callable[[Fields], Path]


def test_a_run_gives_a_plain_folder(
    fields: Fields, write: Write, train: Any, losses: Any, tiny_llama: Path
) -> None:
    fields["precision"] = "bf16"
    fields["eval"] = {"share": 0.1}
    out = Path(fields["out"])
    done = train(write(fields))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(out / "model"), str(out / "train_report.json")]
    curve = losses(out)
    assert sorted(curve) == [1, 2, 3, 4]
    assert curve[4] < curve[1]
    written, source = open_checkpoint(out / "model"), open_checkpoint(tiny_llama)
    assert {n: (i.dtype, i.shape) for n, i in written.tensors.items()} == {
        n: (i.dtype, i.shape) for n, i in source.tensors.items()
    }
    config = json.loads((out / "model" / "config.json").read_text())
    assert (config["dtype"], config["use_cache"]) == ("bfloat16", True)
    assert not any(path.name.startswith(".") for path in out.iterdir())

    again = train(write(fields))
    assert again.returncode == 2
    assert again.stderr.count("error:") == 1
    assert "this run is finished" in again.stderr


@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_samples_do_not_see_each_other(
    fields: Fields, write: Write, here: Any, losses: Any, checkpointing: bool
) -> None:
    fields |= {"steps": 1, "batch": {"micro_batch": 16, "accumulation_steps": 1}}
    fields["data"]["seq_len"] = 2048
    fields["checkpointing"] = {"enabled": checkpointing}
    assert here(write(fields))[0] == 0
    alone = losses(Path(fields["out"]))
    fields["out"] += "-packed"
    fields["data"]["packing"] = True
    fields["batch"] = {"micro_batch": 1, "accumulation_steps": 1}
    code, err = here(write(fields))
    assert code == 0
    assert "16 of 16 rows packed into 1" in err
    assert losses(Path(fields["out"])) == pytest.approx(alone, rel=1e-5)


def test_accumulation_is_a_larger_batch(
    fields: Fields, write: Write, here: Any, losses: Any
) -> None:
    curves = []
    for micro_batch, accumulated in ((4, 1), (2, 2), (1, 4)):
        fields["out"] = f"{fields['out']}-{micro_batch}"
        fields["batch"] = {"micro_batch": micro_batch, "accumulation_steps": accumulated}
        assert here(write(fields))[0] == 0
        curves.append(losses(Path(fields["out"])))
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    assert curves[2] == pytest.approx(curves[0], rel=1e-5)


def test_adapters_are_written_alone_and_merged_on_demand(
    fields: Fields, write: Write, here: Any
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from qdeploy.train.output import merge_result
    from qdeploy.train.recipe import read_recipe

    fields["peft"] = {"kind": "lora", "rank": 4}
    fields["checkpointing"] = {"enabled": True}
    out, path = Path(fields["out"]), write(fields)
    assert here(path)[0] == 0
    assert (out / "adapter" / "adapter_model.safetensors").is_file()
    assert not (out / "model").exists()

    assert merge_result(read_recipe(path)) == out / "model"
    ids = torch.arange(20).reshape(1, 20)
    base = AutoModelForCausalLM.from_pretrained(fields["model"], dtype=torch.float32)
    plain = base(ids).logits
    with_adapter = PeftModel.from_pretrained(base, str(out / "adapter"))(ids).logits
    whole = AutoModelForCausalLM.from_pretrained(out / "model", dtype=torch.float32)(ids).logits
    assert torch.allclose(whole, with_adapter, atol=1e-4)
    assert not torch.allclose(whole, plain, atol=1e-3)


def test_a_run_is_resumed_as_itself_only(
    fields: Fields, write: Write, here: Any, losses: Any
) -> None:
    fields["save"] = {"every_steps": 2}
    out, path = Path(fields["out"]), write(fields)
    assert here(path)[0] == 0
    unbroken, weights = losses(out), (out / "model" / "model.safetensors").read_bytes()
    # As if it had been killed in its third step.
    (out / "model").rename(out / "first-model")
    (out / "checkpoints" / "checkpoint-4").rename(out / "checkpoint-4")

    code, err = here(path)
    assert code == 2
    assert "checkpoints of an earlier run" in err
    code, err = here(write({**fields, "seed": 1}), "--resume")
    assert code == 2
    assert "another recipe" in err

    code, err = here(write(fields), "--resume")
    assert code == 0
    assert "going on from" in err
    assert losses(out) == unbroken
    assert (out / "model" / "model.safetensors").read_bytes() == weights


def test_resume_without_a_checkpoint_begins(fields: Fields, write: Write, here: Any) -> None:
    fields["steps"] = 1
    code, err = here(write(fields), "--resume")
    assert code == 0
    assert "starting from the beginning" in err


@pytest.mark.parametrize("change", ["data", "seq_len", "template"])
def test_bad_input_is_one_error(
    fields: Fields, write: Write, here: Any, tmp_path: Path, change: str
) -> None:
    if change == "data":
        (tmp_path / "empty.jsonl").touch()
        fields["data"] = {"path": str(tmp_path / "empty.jsonl")}
        message = "holds no rows"
    elif change == "seq_len":
        fields["data"]["seq_len"] = 4096
        message = "more than the 2048 positions"
    else:
        fields["data"]["chat_template"] = "missing.jinja"
        message = "cannot read data.chat_template"
    code, err = here(write(fields))
    assert code == 2
    assert err.count("error:") == 1
    assert message in err
    assert "Traceback" not in err
