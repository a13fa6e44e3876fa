"""`run_eval`: every candidate answers the same prompts, one after the other.

The first candidate is the baseline. It renders the prompts, answers some of them a second time
under another batching (the noise floor: differences of that size mean nothing), and is loaded once
more beside each other candidate for the teacher-forced screen.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qdeploy.core.artifacts import sha256_file
from qdeploy.core.console import progress, say
from qdeploy.core.errors import InputError, RunError, UnknownNameError
from qdeploy.evals.assemble import assemble
from qdeploy.evals.generate import Ask, answer_suite
from qdeploy.evals.prepare import noise_prompts, other_prompts, prepare
from qdeploy.evals.render import Rendered, bos_decision
from qdeploy.evals.results import (
    REPORT_NAME,
    SAMPLES_FOLDER,
    CandidateInfo,
    EvalReport,
    Sample,
)
from qdeploy.evals.run_state import EvalOptions, State, of_suite
from qdeploy.evals.samples import SampleFile
from qdeploy.evals.screen import ScreenText, choose_texts, screen
from qdeploy.evals.suite import Suite, capped, read_suite
from qdeploy.runtime.candidate import Candidate

NOISE_FOLDER = "noise"


@dataclass(frozen=True)
class CandidateLoader:
    """A candidate that is not loaded yet."""

    name: str
    load: Callable[[], Candidate]


def run_eval(
    candidates: Sequence[CandidateLoader], suites: Sequence[Path], out: Path, options: EvalOptions
) -> EvalReport:
    """Run all candidates on all suites and write samples and `eval_report.json` to `out`.

    Samples that `out` already holds for the very same weights, prompts, decoding and code are kept.
    Raises InputError for fewer than two candidates, a name or suite given twice, a malformed suite,
    or an output folder with another run's samples; RunError when the baseline computes NaN. Faults
    of another candidate become findings.
    """
    began = time.monotonic()
    _check_names(candidates)
    read = [capped(read_suite(path), options.max_new_tokens) for path in suites]
    _check_suites(read)
    state = State(out, options)
    baseline = candidates[0]
    model = baseline.load()
    _prepare(state, read, model)
    _run_baseline(state, model)
    source = model.source
    del model
    for loader in candidates[1:]:
        gc.collect()
        _run_candidate(state, loader, baseline)
    report = assemble(state, source, time.monotonic() - began)
    report.write(out / REPORT_NAME)
    return report


def _check_names(candidates: Sequence[CandidateLoader]) -> None:
    names = [loader.name for loader in candidates]
    if len(names) < 2:
        raise InputError(
            f"a comparison needs two candidates or more, found {len(names)}",
            hint="name the baseline first: --compare bf16,int8",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"candidate named twice: {', '.join(twice)}")


def _check_suites(suites: list[Suite]) -> None:
    names = [suite.spec.name for suite in suites]
    if not names:
        raise InputError("no suite given: nothing could be measured")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"suite named twice: {', '.join(twice)}")


def _prepare(state: State, suites: list[Suite], model: Candidate) -> None:
    for name in state.options.noise or ():
        if name not in {suite.spec.name for suite in suites}:
            raise UnknownNameError("suite", name, [suite.spec.name for suite in suites])
    state.options.limits.check_names(name for suite in suites for name in suite.by_class())
    for suite in suites:
        prepared = prepare(suite, model, state.options.limits, state.options.seed)
        state.prepared.append(prepared)
        for name, skipped in prepared.skipped.items():
            if skipped:
                message = f"{name}: {skipped} prompts with their answers do not fit into the model"
                level: Literal["error", "warning"]
                level = "warning" if prepared.of_class(name) else "error"
                state.find(level, None, "skipped_items", message)
    first = next((found.prompts[0] for found in state.prepared if found.prompts), None)
    if first is None:
        raise InputError(f"no prompt fits into the {model.max_positions} positions of {model.name}")
    state.bos = bos_decision(model.tokenizer, first.prompt_ids)
    say(f"prompts: {state.bos}")


def _run_baseline(state: State, model: Candidate) -> None:
    _answer_all(state, model)
    for prepared in state.prepared:
        name = prepared.suite.spec.name
        if state.options.noise is not None and name not in state.options.noise:
            continue
        file = SampleFile(
            state.out / NOISE_FOLDER / f"{name}.jsonl",
            state.key(model, prepared) | {"pass": "noise"},
            overwrite=state.options.overwrite,
        )
        again = noise_prompts(prepared)
        batch_tokens = max(1, state.options.batch_tokens // 2)
        _answer(state, model, prepared.suite, again, file, batch_tokens)
        state.noise |= {f"{name}/{item}": sample for item, sample in file.done.items()}


def _run_candidate(state: State, loader: CandidateLoader, baseline: CandidateLoader) -> None:
    model = loader.load()
    twin = next((i for i in state.infos if i.weights_digest == model.weights_digest), None)
    if twin is not None:
        message = f"has the same weights as {twin.name}: there is nothing to compare"
        state.find("error", model.name, "same_weights", message)
    if model.manifest_matches is False:
        message = "the weights are not those that its quant_manifest.json describes"
        state.find("warning", model.name, "manifest_mismatch", message)
    other = [item for found in state.prepared for item in other_prompts(found, model.tokenizer)]
    if other:
        message = (
            f"its tokenizer gives other tokens for {len(other)} prompts, {other[0]} among them"
        )
        state.find("error", model.name, "prompt_mismatch", message)
        state.infos.append(_info(model, [], 0.0))
        return
    try:
        _answer_all(state, model)
        if state.options.screen_tokens:
            _screen(state, model, baseline)
    except RunError as error:
        state.find("error", model.name, "not_finite", error.message)


def _screen(state: State, model: Candidate, baseline: CandidateLoader) -> None:
    texts = choose_texts(_answered(state, model), state.options.screen_tokens)
    try:
        state.screens.append(screen(baseline.load(), model, texts))
    except InputError as error:
        state.find("error", model.name, "not_comparable", error.message)


def _answer_all(state: State, model: Candidate) -> None:
    """All suites by one model, into its samples folder."""
    mine = state.samples.setdefault(model.name, {})
    seconds = 0.0
    try:
        for prepared in state.prepared:
            name = prepared.suite.spec.name
            relative = f"{SAMPLES_FOLDER}/{model.name}/{name}.jsonl"
            file = SampleFile(
                state.out / relative,
                state.key(model, prepared),
                overwrite=state.options.overwrite,
            )
            try:
                _answer(
                    state, model, prepared.suite, prepared.prompts, file, state.options.batch_tokens
                )
            finally:
                seconds += file.seconds
                mine |= {f"{name}/{item}": sample for item, sample in file.done.items()}
                state.files[relative] = sha256_file(file.path)
    finally:
        state.infos.append(_info(model, list(mine.values()), seconds))


def _answer(
    state: State,
    model: Candidate,
    suite: Suite,
    prompts: list[Rendered],
    file: SampleFile,
    batch_tokens: int,
) -> None:
    references = of_suite(state.baseline, suite.spec.name) if state.infos else None
    todo = sum(prompt.item.id not in file.done for prompt in prompts)
    label = f"{model.name} {suite.spec.name}"
    if todo < len(prompts):
        say(f"{label}: {len(prompts) - todo} of {len(prompts)} samples are there already")
    if not todo:
        return
    with file, progress(label, todo) as bar:
        ask = Ask(batch_tokens, references, bar.advance)
        broken = answer_suite(model, suite, prompts, file, ask)
    if broken:
        message = f"{len(broken)} scores are not finite, {broken[0]} among them"
        state.find("error", model.name, "not_finite", message)


def _answered(state: State, model: Candidate) -> dict[str, list[ScreenText]]:
    """Task class -> the prompts with the baseline's answers, as tokens."""
    texts: dict[str, list[ScreenText]] = {}
    for prepared in state.prepared:
        for prompt in prepared.prompts:
            sample = state.baseline.get(f"{prepared.suite.spec.name}/{prompt.item.id}")
            if sample is not None:
                ids = model.tokenizer.encode(sample.output, add_special_tokens=False)
                texts.setdefault(sample.task_class, []).append(ScreenText(prompt.prompt_ids, ids))
    return texts


def _info(model: Candidate, samples: list[Sample], seconds: float) -> CandidateInfo:
    return CandidateInfo(
        name=model.name,
        source=model.source,
        format=model.format,
        weights_digest=model.weights_digest,
        weights_bytes=model.weights_bytes,
        runtime=model.runtime,
        manifest_matches=model.manifest_matches,
        seconds=seconds,
        generated_tokens=sum(sample.output_tokens for sample in samples),
    )
