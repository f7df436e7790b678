"""Every code a finding can have, and what it means: the chapter "Finding codes" of hwctl-verify(1).

A test collects the codes from the source and compares.
"""

from __future__ import annotations

from collections.abc import Mapping

CODES: Mapping[str, str] = {
    "abandoned": "A staging entry whose producer is proven dead: it will never be finished.",
    "all-zeros": "A file of zeros, or one that begins and ends with them: its data was never written.",
    "blob-digest": "A file is not what the name of its Hugging Face blob says: the download is damaged.",
    "config-malformed": "A checkpoint's config.json is no JSON object, or holds a key twice.",
    "dangling-link": "A link in a checkpoint leads nowhere, as after a copy of the links alone.",
    "document-too-large": "An index or config.json is larger than any sound one.",
    "file-empty": "A file without a byte.",
    "file-too-short": "A file of fewer than 8 bytes, too short even for the length of a safetensors header.",
    "gguf-file": "A GGUF file under the name of a safetensors file.",
    "gzip-file": "A gzip file under the name of a safetensors file.",
    "hdf5-file": "An HDF5 file under the name of a safetensors file.",
    "header-duplicate-key": "A safetensors header names a tensor or a field twice.",
    "header-empty": "A safetensors header whose length is given as zero.",
    "header-not-json": "A safetensors header that is no JSON, is nested too deeply, or is not UTF-8.",
    "header-past-end": "A safetensors header that would reach past the end of the file.",
    "header-too-large": "A safetensors header over the 100 MB limit; what is no header looks so too.",
    "header-type": "A safetensors header with JSON of another type than the format wants.",
    "html-page": "An HTML page under the name of a weight file, such as a login page.",
    "index-ambiguous": "A checkpoint with several indexes, none of them the usual one.",
    "index-malformed": "An index that is no JSON object with a weight_map of plain file names.",
    "index-tensor-missing": "The index places a tensor in a shard that does not hold it.",
    "index-tensor-unlisted": "A shard holds a tensor that the index does not place there.",
    "json-page": "A JSON document under the name of a weight file, such as an error answer.",
    "lfs-pointer": "A Git LFS pointer: the file it stands for was never fetched.",
    "missing-shard": "A weight file that the index or the numbering promises is not there.",
    "no-weights": "A folder or file without any tensor.",
    "not-a-file": "A directory, fifo or the like in the place of a file.",
    "npy-file": "A NumPy array file under the name of a safetensors file.",
    "pickle-file": "A Python pickle or PyTorch checkpoint under the name of a safetensors file.",
    "tensor-gap": "Bytes of a safetensors file that belong to no tensor.",
    "tensor-in-two-shards": "Two weight files hold the same tensor, and no index chooses.",
    "tensor-offsets": "A tensor whose offsets run backwards or are no two unsigned numbers.",
    "tensor-overlap": "Two tensors that share bytes of a safetensors file.",
    "trailing-bytes": "Bytes after the last tensor of a safetensors file.",
    "truncated": "A safetensors file that is shorter than its tensors need.",
    "unknown-dtype": "A tensor of a dtype that the safetensors format does not know.",
    "xml-page": "An XML document under the name of a weight file, such as an object store's error answer.",
    "zip-file": "A ZIP archive under the name of a safetensors file.",
    "zstd-file": "A Zstandard file under the name of a safetensors file.",
}
