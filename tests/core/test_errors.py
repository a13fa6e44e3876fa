from qdeploy.core.errors import InputError, RunError, UnknownNameError, nearest


def test_unknown_name_offers_the_nearest_and_all_choices() -> None:
    error = UnknownNameError("scheme", "int9", ["int8", "gptq-int4"])
    assert error.message == "unknown scheme 'int9'"
    assert error.hint == "did you mean 'int8'? choices: gptq-int4, int8"
    assert error.exit_code == 2


def test_unknown_name_without_anything_near() -> None:
    assert UnknownNameError("GPU", "zzz", ["A100-80GB"]).hint == "choices: A100-80GB"
    assert UnknownNameError("GPU", "zzz", []).hint == "choices: none"


def test_nearest_ignores_case() -> None:
    assert nearest("a100-80gb", ["A100-80GB", "T4"]) == "A100-80GB"
    assert nearest("量化", ["int8"]) is None


def test_exit_codes() -> None:
    assert InputError("x").exit_code == 2
    assert RunError("x").exit_code == 1
