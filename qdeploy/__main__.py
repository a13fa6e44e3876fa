"""`python -m qdeploy`."""

from qdeploy.cli.main import run

run()
