"""OPT and Galactica: a ReLU or GELU MLP, LayerNorms before, learned positions from row 2 on."""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.models.config import activation, dropout, flag, head_dim, model_shape, size
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.decoder.layers",
    linears=(*llama.ATTENTION[:3], "self_attn.out_proj", "fc1", "fc2"),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from an OPT config.json.

    Raises InputError for OPT-350m's form: norms after the residual, a narrower embedding.
    """
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    narrow = size(config, "word_embed_proj_dim", default=hidden) != hidden
    if narrow or not flag(config, "do_layer_norm_before", default=True):
        raise InputError(
            f"config of {config['_name']}: OPT-350m's form, with norms after the residual and "
            "an embedding narrower than the model, is not handled"
        )
    bias = flag(config, "enable_bias", default=True)
    affine = flag(config, "layer_norm_elementwise_affine", default=True)
    return model_shape(
        config,
        layers=size(config, "num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, hidden, heads),
        intermediate_size=size(config, "ffn_dim"),
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings", default=2048),
        linear_names=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
        gated_mlp=False,
        activation=activation(config, "activation_function", default="relu"),
        tied_embeddings=flag(config, "tie_word_embeddings", default=True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norm="layer",
        norm_weight=affine,
        norm_bias=affine,
        final_norm=not flag(config, "_remove_final_layer_norm", default=False),
        learned_positions=True,
        position_offset=2,
        embedding_dropout=dropout(config, "dropout", 0.1),
        attention_dropout=dropout(config, "attention_dropout"),
        residual_dropout=dropout(config, "dropout", 0.1),
    )
