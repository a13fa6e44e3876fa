import pytest

from qdeploy.calib.data import Conversation
from qdeploy.calib.template import load_tokenizer, rendered, token_ids
from qdeploy.core.errors import InputError

from .conftest import NO_SYSTEM_TEMPLATE, byte_tokenizer

CHAT = Conversation((("user", "你好"), ("assistant", "您好!")), None, "a.jsonl:1")
WITH_SYSTEM = Conversation((("system", "Be brief."), *CHAT.messages), None, "a.jsonl:2")
TEXT = Conversation(None, "plain", "a.txt:1")


def test_chat_is_rendered_once_and_whole(tokenizer):
    ids = token_ids(CHAT, tokenizer)
    assert tokenizer.decode(ids) == "<bos><|user|>你好<eos><|assistant|>您好!<eos>"
    assert ids.count(tokenizer.bos_token_id) == 1
    # bos, two roles, two eos, and one token a byte of UTF-8
    assert len(ids) == 5 + len("你好您好!".encode())


@pytest.mark.parametrize("text", ["plain", "<bos>plain"])
def test_text_gets_the_tokenizers_special_tokens_once(tokenizer, text):
    ids = token_ids(Conversation(None, text, "a.txt:1"), tokenizer)
    assert tokenizer.decode(ids) == "<bos>plain"


def test_text_without_bos_token():
    tokenizer = byte_tokenizer(bos=None, chat_template=None)
    assert tokenizer.decode(token_ids(TEXT, tokenizer)) == "plain"


def test_missing_template_is_an_error_for_chats_only():
    tokenizer = byte_tokenizer(chat_template=None)
    assert token_ids(TEXT, tokenizer)
    with pytest.raises(InputError, match="is a chat, but the tokenizer has no") as raised:
        token_ids(CHAT, tokenizer)
    assert "chat_template.jinja" in raised.value.hint


def test_template_that_refuses_the_system_role():
    tokenizer = byte_tokenizer(NO_SYSTEM_TEMPLATE)
    assert rendered(CHAT, tokenizer).startswith("<bos><|user|>")
    with pytest.raises(InputError, match=r"a\.jsonl:2: .* refuses the role 'system'"):
        token_ids(WITH_SYSTEM, tokenizer)


def test_template_that_refuses_the_order_of_roles():
    refusing = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('user must be first') }}{% endif %}"
    )
    odd = Conversation((("assistant", "geheim"), ("user", "x")), None, "a.jsonl:3")
    with pytest.raises(InputError, match="roles assistant, user: user must be first") as raised:
        token_ids(odd, byte_tokenizer(refusing))
    assert "geheim" not in raised.value.message


def test_load_tokenizer(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "model")
    loaded = load_tokenizer(tmp_path / "model")
    assert token_ids(WITH_SYSTEM, loaded) == token_ids(WITH_SYSTEM, tokenizer)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no usable tokenizer"):
        load_tokenizer(tmp_path / "empty")
