import csv

import pytest

from qdeploy.calib.data import data_files, read_data
from qdeploy.core.errors import InputError
from qdeploy.core.plugins import load_plugin, plugin_names

READERS = plugin_names("qdeploy.calib.readers")
ASKED = (("user", "退货怎么办?"), ("assistant", "七天内可以退货。"))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "退货怎么办?", "response": "七天内可以退货。", "id": 7, "lang": "zh"},
        {"prompt": "退货怎么办?", "completion": "七天内可以退货。"},
        {"question": "退货怎么办?", "answer": "七天内可以退货。"},
        {"query": "退货怎么办?", "response": "七天内可以退货。"},
        {"instruction": "退货怎么办?", "input": "", "output": "七天内可以退货。"},
        {
            "messages": [
                {"role": "user", "content": "退货怎么办?"},
                {"role": "assistant", "content": "七天内可以退货。", "tool_calls": None},
            ]
        },
        {
            "conversations": [
                {"from": "human", "value": "退货怎么办?"},
                {"from": "gpt", "value": "七天内可以退货。"},
            ]
        },
        {
            "system": "",
            "messages": [
                {"role": "system", "content": ""},
                {"role": "user", "content": [{"type": "text", "text": "退货怎么办?"}]},
                {"role": "assistant", "content": "七天内可以退货。"},
            ],
        },
    ],
)
def test_all_forms_of_a_chat_are_the_same_conversation(write_rows, row):
    (found,) = read_data(write_rows([row]))
    assert found.messages == ASKED
    assert found.text is None


def test_alpaca_input_follows_the_instruction_and_system_leads(write_rows):
    row = {"system": "Be brief.", "instruction": "Sum up:", "input": "long", "output": "short"}
    (found,) = read_data(write_rows([row]))
    assert found.messages == (
        ("system", "Be brief."),
        ("user", "Sum up:\nlong"),
        ("assistant", "short"),
    )


def test_chat_keys_win_over_text(write_rows):
    row = {"text": "Q: a A: b", "question": "a", "answer": "b"}
    (found,) = read_data(write_rows([row]))
    assert found.messages == (("user", "a"), ("assistant", "b"))


def test_jsonl_skips_blank_lines_keeps_line_numbers_and_unicode_line_ends(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"text": "one\u2028still one"}\r\n\r\n  \n{"text": "two"}'.encode())
    one, two = read_data(path)
    assert (one.text, one.source) == ("one\u2028still one", f"{path}:1")
    assert (two.text, two.source) == ("two", f"{path}:4")


def test_txt_passages(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\r\n第一段\r\n第二行\r\n \t\r\n\r\nsecond".encode())
    one, two = read_data(path)
    assert (one.text, one.source) == ("第一段\n第二行", f"{path}:2")
    assert (two.text, two.source) == ("second", f"{path}:6")


def test_csv_reads_what_excel_writes(tmp_path):
    path = tmp_path / "a.CSV"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "question", "answer"])
        writer.writerow([1, 'He said "no",\nthen left', "第二"])
        writer.writerow(["", "", ""])
        writer.writerow([2, "长" * 200_000, "ok"])
    limit = csv.field_size_limit()
    one, two = read_data(path)
    assert one.messages == (("user", 'He said "no",\nthen left'), ("assistant", "第二"))
    assert [one.source, two.source] == [f"{path}:2", f"{path}:5"]
    assert len(two.messages[0][1]) == 200_000
    assert csv.field_size_limit() == limit


SECRET = "13812345678"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"id": SECRET}, ["no known form", "id (text)", "messages"]),
        ({"prompt": SECRET}, ["prompt (text)"]),
        ([SECRET], ["must be an object, found list"]),
        (SECRET, ["found text"]),
        (None, ["found null"]),
        ({"text": [SECRET]}, ["'text' must be text, found list"]),
        ({"text": " \n"}, ["'text' is empty"]),
        ({"text": "\ud800" + SECRET}, ["surrogate"]),
        ({"prompt": SECRET, "response": None}, ["'response' must be text, found null"]),
        ({"messages": []}, ["found an empty list"]),
        ({"messages": SECRET}, ["found text"]),
        ({"messages": [SECRET]}, ["message 1", "found text"]),
        ({"messages": [{"role": "user"}]}, ["'role' and 'content'", "role (text)"]),
        ({"messages": [{"role": SECRET, "content": "a"}]}, ["found text"]),
        ({"messages": [{"role": "usr", "content": "a"}]}, ["'usr'", "assistant"]),
        ({"messages": [{"role": ["a"], "content": "a"}]}, ["found list"]),
        ({"messages": [{"role": "user", "content": True}]}, ["found true/false"]),
        ({"messages": [{"role": "system", "content": SECRET}]}, ["no message of a user"]),
        (
            {"messages": [{"role": "assistant", "content": SECRET, "tool_calls": [{"id": 1}]}]},
            ["calls tools"],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "image_url": SECRET}]}]},
            ["only text parts", "image_url (text)"],
        ),
    ],
)
def test_malformed_rows_name_the_place_and_never_the_content(tmp_path, row, words):
    import json

    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + json.dumps(row) + "\n")
    with pytest.raises(InputError) as raised:
        read_data(path)
    said = f"{raised.value.message} {raised.value.hint}"
    assert f"{path}:2" in said
    assert SECRET not in said
    for word in words:
        assert word in said


def test_broken_json_names_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{{"text": "{SECRET}"\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2 is not one JSON object a line") as raised:
        read_data(path)
    assert SECRET not in raised.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id;text\n1;a\n", "a.csv:1: no known columns, found 'id;text'"),
        ("prompt,response\na,b\nc,d,e\n", "a.csv:3: 3 cells, the header has 2"),
        ('text\nfine\n"open\n', "a.csv:3 is not valid CSV"),
        ("prompt,response\na,\n", "a.csv:2: no known form of row, found prompt"),
    ],
)
def test_malformed_csv(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_data(path)


@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_empty_files_and_other_encodings(tmp_path, name):
    assert load_plugin("qdeploy.calib.readers", name, "reader").read
    path = tmp_path / f"a.{name}"
    for content in (b"", b"\n \n", b"\xef\xbb\xbf"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="holds no rows"):
            read_data(path)
    path.write_bytes("text\n退货".encode("gb18030"))
    with pytest.raises(InputError, match=r"not UTF-8 \(byte 5\)") as raised:
        read_data(path)
    assert "iconv" in raised.value.hint


def test_folder_in_sorted_order(tmp_path, capsys):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "1.txt").write_text("third")
    (tmp_path / "a.txt").write_text("first\n\nsecond")
    (tmp_path / "c.jsonl").write_text('{"text": "fourth"}')
    (tmp_path / "README.md").write_text("no data")
    (tmp_path / ".git" / "x.txt").write_text("hidden")
    assert [row.text for row in read_data(tmp_path)] == ["first", "second", "third", "fourth"]
    assert "README.md" in capsys.readouterr().err
    assert data_files(tmp_path)[0] == tmp_path / "a.txt"


def test_folder_or_file_without_reader(tmp_path):
    (tmp_path / "a.parquet").write_text("x")
    with pytest.raises(InputError, match="holds no data file") as raised:
        read_data(tmp_path)
    assert "*.jsonl" in raised.value.hint
    with pytest.raises(InputError, match="no reader for the suffix"):
        read_data(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no such file or folder"):
        read_data(tmp_path / "missing")
