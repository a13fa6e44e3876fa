"""BERT with a head for sequence classification: norms behind each residual, no causal mask."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import activation, dropout, head_dim, model_shape, size
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="bert.encoder.layer",
    linears=(
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a BERT config.json: embeddings, encoder, pooler and a classifier.

    The classifier has a row for each entry of `id2label`, two where there is none.
    """
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    names = config.get("id2label")
    return model_shape(
        config,
        layers=size(config, "num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, hidden, heads),
        intermediate_size=size(config, "intermediate_size"),
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings", default=512),
        task="classification",
        labels=len(names) if names else size(config, "num_labels", default=2),
        causal=False,
        linear_names=("query", "key", "value", "dense", "dense", "dense"),
        gated_mlp=False,
        activation=activation(config, "hidden_act", default="gelu"),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        norm="layer",
        norm_bias=True,
        embedding_norm=True,
        final_norm=False,
        learned_positions=True,
        token_types=size(config, "type_vocab_size", default=2),
        pooler=True,
        embedding_dropout=dropout(config, "hidden_dropout_prob", 0.1),
        attention_dropout=dropout(config, "attention_probs_dropout_prob", 0.1),
        residual_dropout=dropout(config, "hidden_dropout_prob", 0.1),
    )
