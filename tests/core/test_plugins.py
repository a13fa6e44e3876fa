import pytest

from qdeploy.core.errors import UnknownNameError
from qdeploy.core.plugins import load_plugin, plugin_names

FAMILIES = "qdeploy.models.families"


def test_names_are_files() -> None:
    assert {"llama", "gpt2", "gemma3_text"} <= set(plugin_names(FAMILIES))
    assert not any(name.startswith("_") for name in plugin_names(FAMILIES))


def test_dashes_stand_for_underscores() -> None:
    assert load_plugin(FAMILIES, "gemma3-text", "model type").FAMILY.norm_offset == 1.0


@pytest.mark.parametrize("name", ["lama", "", "../llama", "__init__", "os"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownNameError):
        load_plugin(FAMILIES, name, "model type")
