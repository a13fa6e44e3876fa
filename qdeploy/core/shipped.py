"""The plain files that users read, edit and add: calib/, evals/, recipes/.

In a source tree they lie beside the package; in a wheel they are copied to `qdeploy/_shipped`.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(relative: str) -> Path:
    """The path of a shipped file or folder, e.g. `shipped('evals/short_qa.yaml')`."""
    packed = _PACKAGE / "_shipped" / relative
    return packed if packed.exists() else _PACKAGE.parent / relative
