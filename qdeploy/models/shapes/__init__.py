"""Shapes of well-known models, one TOML file each; see `qdeploy.models.shipped_shapes`."""
