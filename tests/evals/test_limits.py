import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.evals.limits import Limits, parse_limits

CLASSES = ["short_qa.en", "short_qa.zh", "long_generation.zh"]


def test_the_most_particular_name_counts() -> None:
    limits = parse_limits(["40", "zh=8", "short_qa=20", "short_qa.zh=3"])
    assert [limits.of(name) for name in CLASSES] == [20, 3, 8]
    assert limits.of("extraction.en") == 40
    assert limits.words() == ["40", "zh=8", "short_qa=20", "short_qa.zh=3"]


def test_no_limit() -> None:
    assert parse_limits([]) == Limits()
    assert Limits().of("short_qa.en") is None
    assert parse_limits(["zh=8"]).of("short_qa.en") is None


@pytest.mark.parametrize("word", ["0", "-1", "x", "", "zh=", "zh=0", "1.5", "²"])
def test_what_is_no_number(word: str) -> None:
    with pytest.raises(InputError, match="no number of items"):
        parse_limits([word])


def test_unknown_names_are_refused() -> None:
    parse_limits(["zh=1", "short_qa=1", "short_qa.en=1"]).check_names(CLASSES)
    with pytest.raises(UnknownNameError, match="'hz'"):
        parse_limits(["hz=1"]).check_names(CLASSES)
