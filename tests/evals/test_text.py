import pytest

from qdeploy.evals.text import final_answer, normalize, script_of, script_share, sentences, units


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("。，！?", []),
        ("The Blue-Card!", ["the", "blue", "card"]),
        ("在竹叶镇，六十五元。", list("在竹叶镇六十五元")),
        ("价格是１,２８０.50元", ["价", "格", "是", "1280.5", "元"]),
        ("64.50", ["64.5"]),
        ("$1,836.00", ["1836"]),
        ("-5 degrees, 10%", ["-5", "degrees", "10", "%"]),
        ("气温−5度", ["气", "温", "-5", "度"]),
        ("1-3", ["1", "3"]),
        ("FH-20817", ["fh", "20817"]),
        ("version 1.10.2", ["version", "1.10.2"]),
        ("1998, 1999", ["1998", "1999"]),
        ("1,23", ["1", "23"]),
        ("AA\u0301", ["a\u00e1"]),
        ("ひらカタ 한글", ["ひ", "ら", "カ", "タ", "한", "글"]),
        ("100.", ["100"]),
        ("STRASSE straße", ["strasse", "strasse"]),
    ],
)
def test_units(text: str, wanted: list[str]) -> None:
    assert units(text) == wanted


def test_normalize_ignores_full_width_and_spaces_between_han() -> None:
    assert normalize("ＡＢ１２ 中 文。") == normalize("ab12中文")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" yes ", "yes"),
        ("<think>hm</think> 42", "42"),
        ("<think>never ends", ""),
        ("a</think>b</think>c", "c"),
    ],
)
def test_final_answer(text: str, wanted: str) -> None:
    assert final_answer(text) == wanted


def test_sentences_drop_numbering_and_keep_places() -> None:
    text = "1. Go on.\n2. Go on. 好了。走"
    assert [said for _, said in sentences(text)] == ["go on", "go on", "好 了", "走"]
    assert text[sentences(text)[2][0] :].startswith(" 好了")


def test_scripts() -> None:
    assert script_of("zh-CN") == "han"
    assert script_of("xx") is None
    assert script_share("中文ab", "han") == 0.5
    assert script_share("123", "latin") == 0
