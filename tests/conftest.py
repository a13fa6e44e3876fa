"""A small random LLaMA model with a tokenizer and chat template, as a Hugging Face folder."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import pytest

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "The parcel arrives on Tuesday between nine and noon; please keep the order number ready.",
    "Read the passage and answer with the exact words. Which colour is the second wire?",
    "包裹预计星期二上午送达,请准备好订单号。根据短文回答问题,用原文的词语。",
    '{"order_number": "KX-4471", "date": "3 May", "total": "$48.20"}',
]


def save_tiny_llama(folder: Path, seed: int = 0, **overrides: int) -> Path:
    """A LLaMA of two blocks with random BF16 weights; `overrides` change its config."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    config = LlamaConfig(
        **{**sizes, **overrides}, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small random model; not to be written to."""
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")
