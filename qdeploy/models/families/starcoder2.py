"""StarCoder 2: grouped queries, LayerNorms, GELU MLP without a gate, biases, a window."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import activation, dropout, flag, model_shape, optional_size
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=(*llama.ATTENTION, "mlp.c_fc", "mlp.c_proj"),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a StarCoder 2 config.json."""
    defaults = {
        "max_position_embeddings": 4096,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    fields = llama.sizes({**defaults, **config})
    fields |= dict.fromkeys(
        ("qkv_bias", "output_bias", "mlp_bias"), flag(config, "use_bias", default=True)
    )
    return model_shape(
        config,
        **fields | {"activation": activation(config, "hidden_act", default="gelu_pytorch_tanh")},
        linear_names=("q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"),
        gated_mlp=False,
        norm="layer",
        norm_bias=True,
        sliding_window=optional_size(config, "sliding_window"),
        embedding_dropout=dropout(config, "embedding_dropout"),
        residual_dropout=dropout(config, "residual_dropout"),
    )
