"""vLLM-Omni host weight stores: immutable safetensors artifacts, manifest, READY marker, flock leases."""
