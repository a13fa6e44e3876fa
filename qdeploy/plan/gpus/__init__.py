"""GPUs, one TOML file each."""
