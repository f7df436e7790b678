"""From a Hugging Face checkpoint to the expert matrices that a kt-int8 tree is made of."""
