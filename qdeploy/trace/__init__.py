"""Activations from the model classes themselves, on meta tensors: `qdeploy train-plan --trace`."""

from qdeploy.trace.request import TracedModel, trace_request, trace_table

__all__ = ["TracedModel", "trace_request", "trace_table"]
