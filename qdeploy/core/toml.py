"""TOML files that lie in a package: tables of facts, one file a thing."""

from __future__ import annotations

import hashlib
import importlib.resources
import sys
from functools import cache
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def read_toml(package: str, name: str) -> tuple[dict[str, Any], str]:
    """The parsed `NAME.toml` of a package and the sha256 of its bytes; not to be changed."""
    data = (importlib.resources.files(package) / f"{name}.toml").read_bytes()
    return tomllib.loads(data.decode("utf-8")), hashlib.sha256(data).hexdigest()
