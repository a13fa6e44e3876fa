"""Batched decoding against transformers' own generate, one prompt at a time."""

from __future__ import annotations

import pytest
import torch

from qdeploy.core.errors import InputError, RunError
from qdeploy.runtime.generate import Generation, generate

FAMILIES = ("llama", "qwen2", "gemma3_text", "gpt2")
NEW_TOKENS = 12


def answers(loaded, prompts, **options) -> dict[int, Generation]:
    found: dict[int, Generation] = {}

    def keep(index: int, generation: Generation) -> None:
        assert index not in found
        found[index] = generation

    settings = {"max_new_tokens": NEW_TOKENS, "stop": [], **options}
    generate(loaded, prompts, on_done=keep, **settings)
    return found


def one_by_one(loaded, prompt: list[int]) -> list[int]:
    output = loaded.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=sorted(loaded.end_ids) or None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def common_token(loaded, prompts) -> int:
    """A token that ends several answers early when it is an end token."""
    token_ids = [g.token_ids[3] for g in answers(loaded, prompts).values()]
    return max(set(token_ids), key=token_ids.count)


@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_as_transformers(random_model, mixed_prompts, family):
    end = common_token(random_model(family), mixed_prompts)
    loaded = random_model(family, end_ids=frozenset({end, 2}))
    found = answers(loaded, mixed_prompts)
    assert sorted(found) == list(range(len(mixed_prompts)))
    for index, prompt in enumerate(mixed_prompts):
        expected = one_by_one(loaded, prompt)
        assert found[index].token_ids == expected
        ended = expected[-1] in loaded.end_ids
        assert found[index].finish_reason == ("stop" if ended else "length")
        text = loaded.tokenizer.decode(expected, skip_special_tokens=True)
        assert found[index].text == text
    assert {g.finish_reason for g in found.values()} == {"stop", "length"}


@pytest.mark.parametrize("family", FAMILIES)
def test_batching_changes_no_answer(random_model, mixed_prompts, family):
    loaded = random_model(family, end_ids=frozenset({2}))
    prompts = mixed_prompts[:5]
    together = answers(loaded, prompts)
    assert answers(loaded, prompts, batch_tokens=1) == together
    assert answers(loaded, prompts, batch_tokens=50) == together


def test_long_answers_outgrow_the_cache_buffer(random_model):
    loaded = random_model("llama")
    found = answers(loaded, [[5], [9, 4]], max_new_tokens=70)
    assert len(found[0].token_ids) == 70
    start = answers(loaded, [[5], [9, 4]], max_new_tokens=3)
    assert found[1].token_ids[:3] == start[1].token_ids


def test_no_prompts(random_model):
    assert answers(random_model("llama"), []) == {}


def test_stop_string_cuts_the_text(random_model, mixed_prompts):
    loaded = random_model("llama")
    full = answers(loaded, mixed_prompts)
    for index in (0, 3, 7):
        text = full[index].text
        stop = text[len(text) // 2 :][:3]
        if "�" in stop or not stop:
            continue
        cut = answers(loaded, [mixed_prompts[index]], stop=["not there", stop])[0]
        assert cut.finish_reason == "stop"
        assert cut.text == text[: text.index(stop)]
        assert len(cut.token_ids) <= len(full[index].token_ids)
        assert stop in loaded.tokenizer.decode(cut.token_ids, skip_special_tokens=True)


def test_chinese_stop_string_over_several_tokens(random_model, monkeypatch):
    loaded = random_model("llama")
    written = loaded.tokenizer("好的。完毕吗。", add_special_tokens=False).input_ids
    steps = iter([*written, *written])

    def scripted(batch, *_):
        logits = torch.zeros(1, len(loaded.tokenizer))
        logits[0, next(steps)] = 1
        return logits

    monkeypatch.setattr("qdeploy.runtime.model.PaddedBatch._forward", lambda *_, **__: None)
    monkeypatch.setattr("qdeploy.runtime.model.PaddedBatch.prefill", scripted)
    monkeypatch.setattr("qdeploy.runtime.model.PaddedBatch.step", scripted)
    found = answers(loaded, [[5]], stop=["完毕"])[0]
    assert (found.text, found.finish_reason) == ("好的。", "stop")


@pytest.mark.parametrize("stop", ["###", ["a", ""], ["a", 3], ("a",)])
def test_stop_must_be_a_list_of_strings(random_model, stop):
    with pytest.raises(InputError, match="list of non-empty strings"):
        answers(random_model("llama"), [[5]], stop=stop)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "no tokens"),
        ([5, 10**6], {}, "outside"),
        ([-1], {}, "outside"),
        ([5] * 117, {}, "128 positions"),
        ([5], {"max_new_tokens": 0}, "at least 1"),
        ([5], {"batch_tokens": 0}, "batch_tokens"),
    ],
)
def test_refused_before_anything_runs(random_model, prompt, options, message):
    def never(*_):
        raise AssertionError("nothing may be answered")

    settings = {"max_new_tokens": NEW_TOKENS, "stop": [], **options}
    with pytest.raises(InputError, match=message):
        generate(random_model("llama"), [[5], prompt], on_done=never, **settings)


def test_prompt_that_just_fits(random_model):
    found = answers(random_model("gpt2"), [[5] * 116])
    assert len(found[0].token_ids) == NEW_TOKENS


def test_nan_names_the_candidate(random_model):
    loaded = random_model("llama")
    loaded.model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(RunError, match="tiny: the model computes NaN"):
        answers(loaded, [[5]])
