"""vLLM-Omni host weight stores: immutable safetensors artifacts behind a manifest, READY marker and flock leases."""
