"""GGUF in: one file of llama.cpp's format to a Hugging Face folder with BF16 weights.

transformers reads and dequantizes GGUF (`gguf_file=`); what it then refuses is saving, because the
loaded config still says that the weights are GGUF. So the weights go into a fresh model.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from qdeploy.core.artifacts import new_folder


def gguf_to_folder(gguf: Path, out: Path) -> None:
    """Write the model and tokenizer of the file `gguf` as a Hugging Face folder `out` (BF16).

    The weights are the dequantized values of the file, rounded to BF16: what quantizing to GGUF
    lost stays lost. Raises InputError when `out` exists.
    """
    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    with new_folder(out) as work:
        fresh.save_pretrained(work)
        tokenizer.save_pretrained(work)
