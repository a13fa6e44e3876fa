import pytest

from qdeploy.core.units import GIB, format_bytes, format_seconds


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (GIB, "1.0 GiB"), (-GIB, "-1.0 GiB")],
)
def test_format_bytes(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.5, "9.5 s"), (59, "59 s"), (75, "1 min 15 s"), (3700, "1 h 1 min")],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
