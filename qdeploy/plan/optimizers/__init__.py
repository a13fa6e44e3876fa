"""Optimizers, one TOML file each; see `qdeploy.plan.job`."""
