"""Policy and reports in, verdict out; reads JSON only."""
