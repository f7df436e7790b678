"""The words of hwctl(1): what the documents and messages mean by them, one line each."""

from __future__ import annotations

from hwctl.cli.grammar import Entry, Section

WORDS = Section(
    "Words",
    (
        Entry(
            "store", "A folder of artifacts of one family; of kt-int8 trees the folder they lie in, the base."
        ),
        Entry(
            "artifact",
            "One set of weights in a store, used and removed as a whole: a folder of host weights, a kt-int8"
            " tree, a page.",
        ),
        Entry("key", "The name of an artifact in its store; --match and --exclude go by it."),
        Entry("shard", "One of the .safetensors files that make up a checkpoint."),
        Entry(
            "manifest", "The document in an artifact that says what belongs to it, with sizes and digests."
        ),
        Entry(
            "lease",
            "A lock on an artifact, shared to use it, exclusive to remove it; it ends with its process.",
        ),
        Entry(
            "staging", "What a producer is still writing, under a name that no reader takes for an artifact."
        ),
        Entry("run id", "The job that a kt-int8 tree is made for; it ends the folder's name, kt-int8-ID."),
        Entry("quarantine", "Where artifacts are set aside with every byte; no reader looks there."),
        Entry("denied", "Marked so that no new reader takes it, though still in its place (host weights)."),
        Entry("page", "An artifact of a page-weights cache: one safetensors file with its documents."),
        Entry("authority", "The document that says which source object a page was made from."),
        Entry(
            "locator", "The document by which a page is found, PREFIX.locator.json; its age is the last use."
        ),
    ),
)
