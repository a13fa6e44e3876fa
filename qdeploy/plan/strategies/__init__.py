"""Training strategies, one TOML file each; see `qdeploy.plan.layout`."""
