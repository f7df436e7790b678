"""KTransformers AMX-INT8 trees: staged under a lease, published by rename, consumed layer by layer."""
