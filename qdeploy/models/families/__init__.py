"""Model families, one file each; see `qdeploy.models.family`."""
