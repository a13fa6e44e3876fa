"""Terms of the memory model, one file each: `NAME_bytes(job, layout)`, bytes on one GPU.

P parameters, T trainable ones, N GPUs, e bytes of a compute number (2 or 4), H hidden size,
Q = heads x head_dim, K = key-value heads x head_dim, A heads, F intermediate size, V vocabulary,
S tokens of a sequence. What lies on the host or on NVMe is not counted here.
"""
