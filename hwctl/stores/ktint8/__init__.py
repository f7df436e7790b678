"""KTransformers AMX-INT8 expert-weight trees: staged under a lease, published by rename, consumed by layer."""
