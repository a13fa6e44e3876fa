"""Shapes from sizes alone."""

from __future__ import annotations

import pytest

from qdeploy.core.errors import InputError
from qdeploy.models.shipped_shapes import shape_by_sizes, shipped_shape
from qdeploy.models.sized import Sizes, parse_parameters


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "inner"),
    [("llama-7b", 4096, 32, 11008), ("llama-13b", 5120, 40, 13824), ("llama-65b", 8192, 80, 22016)],
)
def test_llamas_own_proportions(name: str, hidden: int, layers: int, inner: int) -> None:
    known = shipped_shape(name)
    assert known is not None
    found = shape_by_sizes(Sizes(hidden_size=hidden, layers=layers))
    assert found.shape.intermediate_size == inner
    assert found.parameters == found.shape.parameters == known.parameters


def test_all_sizes_given() -> None:
    sizes = Sizes(
        parameters=8 * 10**9, hidden_size=4096, layers=32, heads=32, kv_heads=8,
        intermediate_size=14336, vocab_size=128256, max_positions=8192,
    )  # fmt: skip
    found, known = shape_by_sizes(sizes, "mine"), shipped_shape("llama-3-8b")
    assert known is not None
    assert found.shape == known.shape.model_copy(update={"name": "mine"})
    assert found.parameters == 8 * 10**9


@pytest.mark.parametrize("parameters", [10**8, 7 * 10**9, 34 * 10**9, 10**12])
def test_nearest_shape(parameters: int) -> None:
    """No other depth of the same proportions comes nearer; written as a plain search."""

    def away(sizes: Sizes) -> int:
        return abs(shape_by_sizes(sizes).shape.parameters - parameters)

    free = shape_by_sizes(Sizes(parameters=parameters)).shape
    assert free.hidden_size == 128 * free.layers
    best = min(range(1, 200), key=lambda n: away(Sizes(hidden_size=128 * n, layers=n)))
    assert free.layers == best


def test_layers_or_hidden_size_from_the_parameters() -> None:
    by_hidden = shape_by_sizes(Sizes(parameters=13 * 10**9, hidden_size=4096)).shape
    layers = min(
        range(1, 100),
        key=lambda n: abs(
            shape_by_sizes(Sizes(hidden_size=4096, layers=n)).shape.parameters - 13 * 10**9
        ),
    )
    assert by_hidden.layers == layers
    by_layers = shape_by_sizes(Sizes(parameters=7 * 10**9, layers=32)).shape
    hidden = min(
        range(128, 8192, 128),
        key=lambda n: abs(
            shape_by_sizes(Sizes(hidden_size=n, layers=32)).shape.parameters - 7 * 10**9
        ),
    )
    assert by_layers.hidden_size == hidden


def test_heads() -> None:
    assert shape_by_sizes(Sizes(hidden_size=576, layers=30)).shape.heads == 9
    assert shape_by_sizes(Sizes(hidden_size=5120, heads=64)).shape.head_dim == 80
    assert shape_by_sizes(Sizes(hidden_size=2560, heads=32, head_dim=128)).shape.head_dim == 128
    assert shape_by_sizes(Sizes(layers=3, heads=5)).shape.hidden_size == 640
    small = shape_by_sizes(Sizes(hidden_size=1, layers=1)).shape
    assert (small.heads, small.head_dim) == (1, 1)


@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        ({"parameters": 13 * 10**9, "hidden_size": 4096, "layers": 32},
         ["13,000,000,000", "6,738,415,616 (-48%)"]),
        ({"parameters": 10**9, "hidden_size": 8192}, ["1,000,000,000", "1,333,813,248 (+33%)"]),
        ({"hidden_size": 60, "heads": 7}, ["hidden size 60 does not divide into 7 heads"]),
        ({"hidden_size": 1024, "heads": 8, "kv_heads": 3}, ["8 attention heads", "3 key-value"]),
        ({"heads": 8}, ["say nothing about how large"]),
        ({"hidden_size": 0}, ["hidden size must be", "found 0"]),
        ({"layers": -1}, ["layers must be", "found -1"]),
        ({"parameters": 10**15}, ["parameters must be"]),
        ({"vocab_size": 1.5, "layers": 1}, ["vocab size must be", "found 1.5"]),
    ],
)  # fmt: skip
def test_contradictions(sizes: dict[str, int], messages: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        shape_by_sizes(Sizes(**sizes))
    for message in messages:
        assert message in caught.value.message


def test_five_percent() -> None:
    """LLaMA-7B's 6,738,415,616 parameters go with up to 1/0.95 and down to 1/1.05 of them."""
    exact = 6_738_415_616
    for parameters in (exact, int(exact / 0.951), int(exact / 1.049)):
        sizes = Sizes(parameters=parameters, hidden_size=4096, layers=32)
        assert shape_by_sizes(sizes).parameters == parameters
    for parameters in (int(exact / 0.949), int(exact / 1.051)):
        with pytest.raises(InputError, match="do not go with"):
            shape_by_sizes(Sizes(parameters=parameters, hidden_size=4096, layers=32))


@pytest.mark.parametrize(
    ("text", "parameters"),
    [("7B", 7 * 10**9), ("0.5b", 5 * 10**8), (" 350 M ", 35 * 10**7), ("1234", 1234)],
)
def test_counts_of_parameters(text: str, parameters: int) -> None:
    assert parse_parameters(text) == parameters


@pytest.mark.parametrize("text", ["", "B", "0B", "-7B", "7T", "7e9", "seven"])
def test_no_count(text: str) -> None:
    with pytest.raises(InputError, match="is no count of parameters"):
        parse_parameters(text)
