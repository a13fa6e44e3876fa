from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qdeploy.plan import Plan, PlanRequest, plan
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.layout import Layout, find_strategy
from qdeploy.plan.oom import OomReport, read_log
from qdeploy.plan.schema import Candidate


class Planning:
    """Short ways to a request, a job, a layout, a plan, a single candidate."""

    def request(self, **fields: Any) -> PlanRequest:
        return PlanRequest(**{"model": "7B", "gpu": "A100-80GB", **fields})

    def job(self, **fields: Any) -> Job:
        return make_job(self.request(**fields))

    def layout(self, strategy: str, offload: Any = "none", *, checkpointing: bool = True) -> Layout:
        return Layout(find_strategy(strategy), offload, checkpointing)

    def plan(self, **fields: Any) -> Plan:
        return plan(self.request(**fields))

    def only(self, **fields: Any) -> Candidate:
        result = self.plan(**{"checkpointing": True, "offload": "none", **fields})
        assert len(result.candidates) == 1
        return result.candidates[0]


@pytest.fixture
def planning() -> Planning:
    return Planning()


@pytest.fixture
def log(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> OomReport:
        path = tmp_path / "train.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_log(path)

    return write
