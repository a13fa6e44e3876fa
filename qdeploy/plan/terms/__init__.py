"""Terms of the memory model, one file each: `NAME_bytes(job, layout)`, bytes on one GPU.

P parameters, T trained ones, both of one rank (see `rank`), N data-parallel GPUs, e bytes of a
compute number (2 or 4), a bytes of an adapter's weight, H hidden size, V vocabulary. What lies on
the host or on NVMe is not counted here. Which terms are there at the same time is the business of
`qdeploy.plan.moments`.
"""
