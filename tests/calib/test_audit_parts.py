import itertools
import random

import pytest

from qdeploy.calib.data import Conversation
from qdeploy.calib.duplicates import first_equal, near_duplicates
from qdeploy.calib.leakage import EvalItem, find_leakage
from qdeploy.calib.normalise import is_character, tokens
from qdeploy.calib.pii import count_pii, is_luhn, is_resident_id


def test_tokens():
    assert tokens("INT8 量化, ＡＢＣ don't") == ("int8", "量", "化", "abc", "don", "t")
    assert tokens("カタカナ") == ("カ", "タ", "カ", "ナ")
    assert tokens("vLLM很快,GPU2张") == ("vllm", "很", "快", "gpu2", "张")
    assert tokens(" ...!?🙂\n") == ()
    assert [is_character(token) for token in ("量", "カ", "int8", "한국", "𠀀")] == [
        True, True, False, False, True,
    ]  # fmt: skip


def brute_force_near(rows):
    """All pairs, sets of 5-grams, Jaccard >= 0.8, equal rows left out."""

    def shingles(row):
        return {tuple(row[i : i + 5]) for i in range(max(1, len(row) - 4))}

    fresh = [i for i, row in enumerate(rows) if rows.index(row) == i and row]
    pairs = {}
    for a, b in itertools.combinations(fresh, 2):
        one, other = shingles(rows[a]), shingles(rows[b])
        if 10 * len(one & other) >= 8 * len(one | other):
            pairs.setdefault(b, a)
    return sorted((a, b) for b, a in pairs.items())


def test_near_duplicates_against_all_pairs():
    draw = random.Random(3)
    rows = [tuple(draw.choices("abcdefgh", k=draw.randrange(0, 60))) for _ in range(60)]
    for row in list(rows):
        changed = list(row)
        for _ in range(draw.randrange(0, 3)):
            if changed:
                changed[draw.randrange(len(changed))] = draw.choice("xyz")
        rows.append(tuple(changed))
    expected = brute_force_near(rows)
    assert len(expected) > 5
    assert sorted(near_duplicates(rows)) == expected


def test_duplicates_at_the_edges():
    assert near_duplicates([]) == []
    assert near_duplicates([(), ("a",), (), ("a",)]) == []
    assert first_equal([("a",), ("b",), ("a",)]) == [0, 1, 0]
    # 8 of 10 shingles in common: exactly the threshold
    one = tuple(map(str, range(13)))
    assert near_duplicates([one, (*one[:12], "x")]) == [(0, 1)]
    assert near_duplicates([one, (*one[:11], "x", "y")]) == []


def chat(user, answer="ok", system=None):
    head = (("system", system),) if system else ()
    return Conversation((*head, ("user", user), ("assistant", answer)), None, "a:1")


def leaks(rows, strings):
    items = [EvalItem(f"e:{n}", (string,)) for n, string in enumerate(strings)]
    keys = [
        tokens("\n".join(text for _, text in row.messages or (("", row.text),))) for row in rows
    ]
    return find_leakage(rows, items, first_equal(keys))


WORDS = [f"w{n}" for n in range(30)]
HAN = "".join(chr(0x4E00 + n) for n in range(60))


@pytest.mark.parametrize(("length", "found"), [(12, []), (13, [(0, 0)]), (20, [(0, 0)])])
def test_thirteen_words_in_a_row_are_a_leak(length, found):
    passage = " ".join(WORDS[:length])
    rows = [chat(f"Please read: {passage.upper()}! And then?")]
    assert leaks(rows, [f"first {passage} " + "last " * 13]).leaks == found


@pytest.mark.parametrize(("length", "found"), [(19, []), (20, [(0, 0)])])
def test_twenty_characters_in_a_row_are_a_leak(length, found):
    row = chat("问题", answer=f"甲{HAN[:10]}, {HAN[10:length]}乙")
    assert leaks([row], [f"丙{HAN[:length]}丁" + HAN[40:]]).leaks == found


def test_mixed_text_counts_when_half_is_chinese():
    mixed = "".join(f"{HAN[n]} w{n} " for n in range(10))
    assert leaks([chat(mixed)], [mixed]).leaks == [(0, 0)]


def test_short_items_leak_as_a_whole_question_only():
    question = "法国的首都是哪里?"
    assert leaks([chat("法国的首都 是哪里")], [question]).leaks == [(0, 0)]
    assert leaks([Conversation(None, question, "a:1")], [question]).leaks == [(0, 0)]
    assert leaks([chat(f"请回答:{question}")], [question]).leaks == []
    assert leaks([chat("x", answer=question)], [question]).leaks == []
    assert leaks([chat("x", system=question)], [question]).leaks == []
    assert leaks([chat("one two three four five")], ["one two three four five"]).leaks == []


def test_first_row_is_named_for_each_item():
    rows = [chat("other"), chat(" ".join(WORDS)), chat("x " + " ".join(WORDS))]
    assert leaks(rows, ["nothing", " ".join(WORDS[5:25]), " ".join(WORDS)]).leaks == [
        (1, 1),
        (2, 1),
    ]


@pytest.mark.parametrize(
    ("rows", "items", "is_leak"), [(11, 11, False), (10, 11, True), (11, 10, True)]
)
def test_an_instruction_of_many_rows_and_items_is_no_leak(rows, items, is_leak):
    instruction = " ".join(WORDS[:13])
    conversations = [chat(f"row{n}", system=instruction) for n in range(rows)]
    found = leaks(conversations, [f"{instruction} item{n}" for n in range(items)])
    assert len(found.leaks) == (items if is_leak else 0)
    assert found.shared_passages == (0 if is_leak else 1)


def test_copies_of_one_row_do_not_make_it_an_instruction():
    passage = " ".join(WORDS[:13])
    found = leaks([chat(passage)] * 20, [f"{passage} item{n}" for n in range(20)])
    assert len(found.leaks) == 20


def resident_id(body):
    """The check character by ISO 7064 MOD 11-2 from its definition: sum of a_i 2^(i-1) = 1."""
    for last in "0123456789X":
        digits = [10 if c == "X" else int(c) for c in body + last]
        if sum(d * 2**i for i, d in enumerate(reversed(digits))) % 11 == 1:
            return body + last
    raise AssertionError


def test_resident_ids():
    bodies = [f"11010519491231{n:03d}" for n in range(25)]
    for body in bodies:
        number = resident_id(body)
        assert is_resident_id(number)
        wrong = "1" if number[-1] != "1" else "2"
        assert not is_resident_id(number[:-1] + wrong)
    assert any(resident_id(body).endswith("X") for body in bodies)
    assert not is_resident_id(resident_id("11010519491331002"))  # month 13


def test_luhn():
    assert is_luhn("79927398713")  # the example of the literature
    assert is_luhn("4111 1111 1111 1111")
    assert not is_luhn("4111111111111112")


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("邮箱是a.b+c@例子 no; x.y@mail.example.com,再见", "email", 1),
        ("a@b and @c.com", "email", 0),
        ("手机13812345678,或 +86 138-1234-5678。", "cn_mobile", 2),
        ("１３８１２３４５６７８", "cn_mobile", 1),
        ("订单号 213812345678 和 1381234567", "cn_mobile", 0),
        ("身份证" + resident_id("11010519491231002") + "号", "cn_resident_id", 1),
        (resident_id("11010519491231002").lower(), "cn_resident_id", 1),
        ("110105194912310021 1234", "cn_resident_id", 0),
        ("卡 4111 1111 1111 1111 和 378282246310005", "bank_card", 2),
        ("卡 4111-1111-1111-1112", "bank_card", 0),
        ("timestamp 1700000000000000", "bank_card", 0),
        ("192.168.0.1, 10.0.0.255.", "ipv4", 2),
        ("版本 1.2.3.4.5 256.1.1.1 1.2.3", "ipv4", 0),
        ("", "email", 0),
    ],
)
def test_pii_counts(text, kind, count):
    assert count_pii(text)[kind] == count


def test_a_resident_id_is_neither_mobile_nor_card():
    counts = count_pii(resident_id("32010519491231002"))
    assert {kind for kind, number in counts.items() if number} == {"cn_resident_id"}
