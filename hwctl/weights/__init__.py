"""Tensors as data: containers, checkpoints, quantisation and packing; no policy, no knowledge of stores."""
