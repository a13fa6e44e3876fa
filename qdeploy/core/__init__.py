"""Errors, schemas, artifacts, plugin look-up, console: what every other package stands on."""
