"""Rules, one file each: `check(case)` yields findings."""
