"""Every plug-in found keeps the contract of its extension point."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from qdeploy.core.plugins import load_plugin, plugin_names
from qdeploy.core.shipped import shipped


def _names(package: str, suffix: str = ".py") -> list[str]:
    found = plugin_names(f"qdeploy.{package}", suffix)
    assert found, f"no plug-ins in {package}"
    return found


def _yamls(folder: str) -> list[Path]:
    found = sorted(shipped(folder).glob("*.yaml"))
    assert found, f"no files in {folder}"
    return found


@pytest.mark.parametrize("name", _names("models.families"))
def test_families(name: str) -> None:
    from qdeploy.models.family import Family

    module = load_plugin("qdeploy.models.families", name, "model type")
    family: Family = module.FAMILY
    assert callable(module.shape)
    assert len(set(family.linears)) == len(family.linears)
    smoothed = [linear for pair in family.pairs for linear in pair.linears]
    assert set(smoothed) <= set(family.linears)
    assert len(set(smoothed)) == len(smoothed), "a linear is smoothed by two sources"


@pytest.mark.parametrize("name", _names("evals.metrics"))
def test_metrics(name: str) -> None:
    from qdeploy.evals.scoring import metric

    module = metric(name)
    assert module.DIRECTION in ("higher", "lower")
    assert module.RANGE is None or module.RANGE > 0
    assert {"short_qa", "classification", "extraction", "long_generation"} >= module.KINDS
    assert list(inspect.signature(module.score).parameters) == ["output", "item", "context"]
    assert inspect.getdoc(module), "a metric says what it means"


@pytest.mark.parametrize("name", _names("calib.readers"))
def test_readers(name: str) -> None:
    assert callable(load_plugin("qdeploy.calib.readers", name, "reader").read)


@pytest.mark.parametrize("name", _names("quant.algorithms"))
def test_algorithms(name: str) -> None:
    module = load_plugin("qdeploy.quant.algorithms", name, "algorithm")
    assert isinstance(module.NEEDS_INPUTS, bool)
    assert isinstance(module.NEEDS_QUANTIZED_ACTIVATIONS, bool)
    assert list(inspect.signature(module.run).parameters) == ["work"]


@pytest.mark.parametrize("name", _names("formats"))
def test_formats(name: str) -> None:
    module = load_plugin("qdeploy.formats", name, "format")
    functions = ("pack", "unpack", "quantization_config", "linear_names", "stored_bytes")
    for function in functions:
        assert callable(getattr(module, function))


@pytest.mark.parametrize("name", _names("gate.rules"))
def test_rules(name: str) -> None:
    from qdeploy.gate.rule import RuleSettings

    module = load_plugin("qdeploy.gate.rules", name, "rule")
    assert issubclass(module.Settings, RuleSettings)
    assert callable(module.judge)


@pytest.mark.parametrize("name", _names("plan.gpus", ".toml"))
def test_gpus(name: str) -> None:
    from qdeploy.plan.gpu import find_gpu

    gpu, _ = find_gpu(name)
    assert gpu.name == name


@pytest.mark.parametrize("path", _yamls("recipes/quantize"), ids=lambda path: path.stem)
def test_schemes(path: Path) -> None:
    from qdeploy.core.scheme import load_scheme

    assert load_scheme(path.stem).name == path.stem


@pytest.mark.parametrize("path", _yamls("evals"), ids=lambda path: path.stem)
def test_suites(path: Path) -> None:
    from qdeploy.evals.suite import read_suite

    suite = read_suite(path)
    assert suite.spec.name == path.stem
    for name, items in suite.by_class().items():
        assert len(items) >= 60, name


@pytest.mark.parametrize("path", _yamls("evals/policies"), ids=lambda path: path.stem)
def test_policies(path: Path) -> None:
    from qdeploy.gate.policy import read_policy

    assert read_policy(path).name == path.stem


@pytest.mark.parametrize("name", _names("plan.emit"))
def test_emitters(name: str) -> None:
    from qdeploy.plan.emit import find_emitter

    emitter = find_emitter(name)
    assert list(inspect.signature(emitter.emit).parameters) == ["plan"]
    assert inspect.getdoc(emitter), "an emitter says what it writes"


@pytest.mark.parametrize("name", _names("plan.lint.rules"))
def test_lint_rules(name: str) -> None:
    from qdeploy.plan import PlanRequest
    from qdeploy.plan.lint import Case
    from qdeploy.plan.lint.case import make_case

    rule = load_plugin("qdeploy.plan.lint.rules", name, "rule")
    assert list(inspect.signature(rule.check).parameters) == ["case"]
    assert inspect.getdoc(rule), "a rule says where its facts are from"
    request = PlanRequest("7B", "A100-80GB", gpus=2)
    for stage in range(4):
        # A rule may find something or nothing, but it never fails on an unusual value.
        for odd in ({}, {"offload_param": "cpu"}, {"overlap_comm": "auto"}, {"sub_group_size": []}):
            case: Case = make_case({"zero_optimization": {"stage": stage, **odd}}, request)
            for finding in rule.check(case):
                assert finding.message
                assert not finding.message.endswith(".")


@pytest.mark.parametrize("path", _yamls("recipes"), ids=lambda path: path.stem)
def test_recipes(path: Path) -> None:
    from qdeploy.train.recipe import read_recipe

    assert read_recipe(path).model
