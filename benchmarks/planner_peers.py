"""qdeploy's planner beside other estimators, on the published peaks that each can express.

    python benchmarks/planner_peers.py [--env DIR] [--rows CSV] [--out FILE]

Each peer is a file `peers/NAME.py`: what to install, what it says it estimates, and `estimate`,
which calls it or says what it has no input for. It gets every input that it has, in an
environment of its own under DIR (kept, and used again) or under a temporary folder. A CPU build of
torch is enough: set PIP_EXTRA_INDEX_URL. The tables go to stdout, with --out to a file too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from peer_answers import load_peer
from peer_tables import Measured, document
from planner_rows import FOLDER, Refusal, peaks_of, read_rows, request_of

from qdeploy.core.errors import InputError, RunError
from qdeploy.models.linear import weights_and_biases
from qdeploy.models.shape import ModelShape
from qdeploy.plan import PlanRequest, plan
from qdeploy.plan.job import make_job
from qdeploy.plan.request import Basis

HERE = Path(__file__).parent
UNSAID: Basis = "reserved"
"""The basis that is compared where a source does not say its own: between the other two."""
# Settings that lower the peak and that no peer has an input for.
_OURS_ALONE = {
    "optimizer_in_backward": False,
    "activation_offload": False,
    "recompute": "block",
    "compile": False,
    "gradient_type": None,
    "ds_config": None,
}
_LLAMA_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LLAMA_MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Peer:
    """An estimator: its name on the command line, its file as a module, its Python."""

    key: str
    module: ModuleType
    python: Path

    def answers(self, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """An answer for each question: bytes, or a refusal. Raises RunError when it breaks."""
        script = str(HERE / "peers" / f"{self.key}.py")
        done = subprocess.run(
            [str(self.python), "-I", str(HERE / "peer_answers.py"), script],
            input=json.dumps(questions),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RunError(f"{self.key} broke: {done.stderr.strip()[-2000:]}")
        return list(json.loads(done.stdout))


def make_peer(key: str, folder: Path) -> Peer:
    """The peer with its environment, which is made unless `folder` has it."""
    module = load_peer(str(HERE / "peers" / f"{key}.py"))
    python = folder / key / "bin" / "python"
    stamp = folder / key / "installed"
    wanted = "\n".join(module.REQUIREMENTS)
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {', '.join(module.REQUIREMENTS)}", file=sys.stderr)
        venv.create(folder / key, clear=True, with_pip=True)
        # In turn: what comes first (a build of torch) is then kept by what needs it.
        for requirement in module.REQUIREMENTS:
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, requirement], check=True)
        stamp.write_text(wanted)
    return Peer(key, module, python)


def question(request: PlanRequest) -> dict[str, Any]:
    """Everything about a run that a peer may have an input for, as JSON values."""
    job = make_job(PlanRequest(model=request.model, gpu=request.gpu))  # the two names looked up
    shape = job.shape
    base = request.base or ("nf4-dq" if request.peft == "qlora" else "16bit")
    return {
        "request": {**asdict(request), "model": shape.name, "base": base},
        "shape": {
            **shape.model_dump(mode="json"),
            "parameters": job.parameters,
            "head_parameters": shape.head_parameters,
            "largest_layer_parameters": _largest_layer(shape),
        },
        "lora_targets": _llama_targets(request, shape),
        "gpu": job.gpu.name,
        "gpu_memory_mib": job.gpu.memory_mib,
        "world": request.world,
        "model_parallel": request.model_parallel * request.expert_parallel,
    }


def _largest_layer(shape: ModelShape) -> int:
    """Parameters of the largest module that has no other inside, as DeepSpeed counts layers."""
    linears = [*shape.attention_linears, *shape.mlp_linears, *shape.expert_linears]
    inner = max(weights_and_biases([linear]) for linear in linears)
    return max(inner, shape.vocab_size * shape.hidden_size)


def _llama_targets(request: PlanRequest, shape: ModelShape) -> list[str]:
    """The adapted linears as LLaMA calls them; a fused linear is all of its parts."""
    attention = [linear.name for linear in shape.attention_linears]
    mlp = [linear.name for linear in shape.mlp_linears]
    wanted = set(request.lora_targets or (*attention, *mlp))
    found: list[str] = []
    for names, theirs in ((attention, _LLAMA_ATTENTION), (mlp, _LLAMA_MLP)):
        parts = len(theirs) - len(names) + 1
        groups = [theirs[:parts], *((name,) for name in theirs[parts:])]
        for name, group in zip(names, groups, strict=False):
            found += group if name in wanted else ()
    return found


def ours(request: PlanRequest) -> int:
    """Bytes of qdeploy's plan on the row's basis. Raises InputError for what it refuses."""
    candidates = plan(request).candidates
    if len(candidates) != 1:
        raise InputError(f"the row leaves {len(candidates)} ways to run it")
    return candidates[0].per_gpu.total_bytes


def measurements(path: Path) -> list[Measured]:
    """Every published peak of the file, with the run that it is of."""
    found = []
    for row in read_rows(path):
        run = request_of(row)
        for peak in peaks_of(row):
            measured = Measured(row, peak.peak_bytes, peak.basis)
            if isinstance(run, Refusal):
                measured.incomplete = run.reason
            else:
                measured.request = replace(run, basis=cast("Basis", peak.basis or UNSAID))
            found.append(measured)
    return found


def estimate(measured: list[Measured], peers: list[Peer]) -> None:
    """Fill in what qdeploy and every peer say of each peak."""
    asked: list[tuple[Measured, dict[str, Any]]] = []
    for item in measured:
        request = item.request
        if request is None:
            continue
        try:
            item.estimates["qdeploy"] = ours(request)
        except InputError as error:
            item.refusals["qdeploy"] = error.message
        odd = [name for name, plain in _OURS_ALONE.items() if getattr(request, name) != plain]
        if odd:
            item.refusals.update({peer.key: f"{odd[0]} is no input" for peer in peers})
        else:
            asked.append((item, question(request)))
    for peer in peers:
        answers = peer.answers([asking for _, asking in asked])
        for (item, _), answer in zip(asked, answers, strict=True):
            if "bytes" in answer:
                item.estimates[peer.key] = answer["bytes"]
            else:
                item.refusals[peer.key] = answer["refusal"]


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def main() -> None:
    """Print the tables, and write them to --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--env", type=Path, help="folder of the peers' environments")
    parser.add_argument(
        "--rows", type=Path, help="another file of rows", default=FOLDER / "measured_peaks.csv"
    )
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    measured = measurements(arguments.rows)
    with _folder(arguments.env) as folder:
        keys = sorted(path.stem for path in (HERE / "peers").glob("*.py"))
        peers = [make_peer(key, folder) for key in keys]
        estimate(measured, peers)
    text = document(measured, {peer.key: peer.module for peer in peers})
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
