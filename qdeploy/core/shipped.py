"""The plain files that users read, edit and add: calib/, evals/, recipes/.

In a source tree they lie beside the package; in a wheel they are copied to `qdeploy/_shipped`.
"""

from __future__ import annotations

from pathlib import Path

from qdeploy.core.errors import InputError, UnknownNameError

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(relative: str) -> Path:
    """The path of a shipped file or folder, e.g. `shipped('evals/short_qa.yaml')`."""
    packed = _PACKAGE / "_shipped" / relative
    return packed if packed.exists() else _PACKAGE.parent / relative


def find_yaml(name: str, folder: str, kind: str) -> Path:
    """A YAML file by path, or by the bare name of a shipped one in `folder`.

    `find_yaml('int8', 'recipes/quantize', 'scheme')` is the shipped scheme,
    `find_yaml('my/own.yaml', ...)` the user's file. Raises InputError for a path that does not
    exist, UnknownNameError for a bare name that is not shipped.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise InputError(f"no such {kind} file: {path}")
        return path
    choices = {file.stem: file for file in shipped(folder).glob("*.yaml")}
    if name not in choices:
        raise UnknownNameError(kind, name, choices)
    return choices[name]
