import json
from pathlib import Path

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.models.family import family_of, shape_of
from qdeploy.models.source import model_folder, read_config


def test_folders_files_and_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_folder(tmp_path) == tmp_path
    (tmp_path / "x.gguf").write_text("")
    with pytest.raises(InputError, match="is a file"):
        model_folder(tmp_path / "x.gguf")
    with pytest.raises(InputError, match="no such model folder"):
        model_folder(tmp_path / "none")


def test_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="neither a folder here nor a model the hub would give"):
        model_folder("qdeploy-nobody/no-such-model")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "must hold an object"),
        ({"architectures": ["X"]}, "no model_type"),
        ({"model_type": "llama"}, "names no architecture"),
        ({"model_type": "llava", "vision_config": {}}, r"config\.json: multimodal model \(llava\)"),
        ({"model_type": "qwen2_audio", "audio_config": {}}, "multimodal"),
        ({"model_type": "qwen", "visual": {"width": 1664}}, "multimodal"),
        ({"model_type": "t5", "is_encoder_decoder": True}, r"encoder-decoder model \(t5\)"),
    ],
)
def test_config_without_what_is_needed(tmp_path: Path, config: object, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        read_config(tmp_path)


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no config\.json"):
        read_config(tmp_path)


def test_unknown_family_and_missing_size() -> None:
    with pytest.raises(UnknownNameError, match="unknown model type 'lama'") as caught:
        family_of({"model_type": "lama"})
    assert "did you mean 'llama'" in (caught.value.hint or "")
    with pytest.raises(InputError, match="has no key 'hidden_size'"):
        shape_of({"model_type": "llama"}, "x")
