"""Gate rules: one file per rule, named as in a policy."""
