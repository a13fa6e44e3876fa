"""Memory of training and of serving, without torch."""
