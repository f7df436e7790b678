"""What the man pages say beyond options: statuses, environment, files, units, documents, finding codes."""

from __future__ import annotations

from hwctl.cli.finding_codes import CODES
from hwctl.cli.glossary import WORDS
from hwctl.cli.grammar import Entry, Section, Verb
from hwctl.errors import Status

ABOUT = (
    "hwctl publishes, verifies, inspects, quarantines, reclaims and evicts stores of model weights on one"
    " node, while the programs that serve from them are at work. Three families are known: hostweights, the"
    " host weight store of vLLM-Omni; ktint8, the AMX-INT8 expert trees of KTransformers; pageweights, the"
    " process-shared page-weights cache.",
    "PATH names a whole store by its root, or one artifact in it. What it is, is told by names and marker"
    " files; --family insists on one family. A symbolic link is refused: its target is to be named. Only the"
    " --store of publish is followed, as vLLM-Omni follows it.",
    "stdout carries the answer, stderr everything said about the work. With --json stdout is exactly one"
    " document, and a failure is one error object on stderr as well. The exit status alone tells a script"
    " what to do next.",
)

_MEANINGS = {
    Status.OK: "Done; for verify: all is valid. Nothing to do is also 0.",
    Status.USAGE: "A wrong option, value or combination. Nothing was touched; fix the call.",
    Status.NOT_FOUND: "PATH does not exist, or is no store of hwctl's three kinds and no artifact in one.",
    Status.BUSY: "Locked or leased by somebody else, and --wait ran out. Try later.",
    Status.REFUSED: "Unsafe: owner, mode, link, remote file system, death not provable, no confirmation,"
    " identity collision. A person decides.",
    Status.UNSUPPORTED: "A schema number, a model family or a missing library that this version cannot"
    " serve.",
    Status.NO_ROOM: "No space, quota, inodes, or a limit of a tmpfs, cgroup or policy; or evict could not"
    " reach its target.",
    Status.IO: "Could not check: an I/O error, no permission, or stdout could not be written.",
    Status.DAMAGED: "The answer is no: an artifact, a checkpoint or a store is damaged, denied or"
    " incomplete.",
    Status.INTERNAL: "A bug in hwctl; HWCTL_DEBUG=1 shows where.",
}

EXIT_STATUS = Section(
    "Exit status",
    (
        *(
            Entry(f"{int(status)} {status.word}" if status else "0 ok", words)
            for status, words in _MEANINGS.items()
        ),
        Entry("125, 126, 127", "exec only: hwctl failed before the command ran; not executable; not found."),
        Entry(
            "128+n",
            "Ended by signal n; 141 stands for a verb that only reads and whose reader went away.",
        ),
        Entry("", "Over several paths the largest wins. A status not listed must be taken as failure."),
    ),
)

ENVIRONMENT = Section(
    "Environment",
    (
        Entry(
            "HWCTL_ROOTS",
            "Stores, separated by colons, for inspect and reclaim-stale without a PATH, and where"
            " quarantine --restore NAME and evict --quarantined NAME look when no store is named."
            " All else needs a PATH.",
        ),
        Entry("HWCTL_JOBS", "Default of --jobs."),
        Entry("HWCTL_WAIT", "Default of --wait."),
        Entry(
            "HWCTL_METRICS_DIR",
            "Folder for Prometheus text files, one for each verb that has --metrics, when that is not given.",
        ),
        Entry("HWCTL_DEBUG", "1 shows the traceback of a bug."),
        Entry("HWCTL_LEASE_FDS", "Set by hwctl exec: the descriptors that hold the leases."),
        Entry("NO_COLOR, TERM, COLUMNS", "As everywhere: no colours, no painting on a dumb terminal, width."),
        Entry("", "An option wins over the environment, the environment over the default."),
    ),
)

FILES = Section(
    "Files",
    (
        Entry("/dev/shm", "Where kt-int8 trees lie, and where stores are looked for by default."),
        Entry("/dev/shm/nnf-resynthesis-none-page-weights-v1", "Default root of the page-weights cache."),
        Entry("domain.json", "Marks the root of a host weight store."),
        Entry("manifest.json, READY.json", "Mark an artifact of a host weight store."),
        Entry("kt-ephemeral-manifest.json", "Marks a kt-int8 tree that is consumed once."),
        Entry("kt-weight-manifest.json", "Marks a kt-int8 tree that stays."),
        Entry("PREFIX.locator.json", "Marks a page of a page-weights cache."),
        Entry(
            "locks/hwctl-admission.lock",
            "In a host weight store: hwctl's own lock, so that one process reserves room at a time. It is"
            " empty and stays.",
        ),
        Entry(
            ".eviction.lock, .PREFIX.lock",
            "In a page-weights cache: the cache's own locks, which hwctl makes where they are missing.",
        ),
        Entry(
            ".hwctl-quarantine",
            "In a folder of kt-int8 trees: what was set aside. There are no lock files: locks are on the"
            " folder and the trees themselves.",
        ),
    ),
)

COMPLETION = Section(
    "Completion",
    (
        Entry(
            "",
            "Where hwctl is installed to, its files lie in share/bash-completion/completions/hwctl,"
            " share/zsh/site-functions/_hwctl and share/fish/vendor_completions.d/hwctl.fish. Below /usr and"
            " /usr/local the shells look there by themselves; elsewhere, in a virtual environment VENV or"
            " in a checkout, they have to be told.",
        ),
        Entry(
            "bash",
            "source VENV/share/bash-completion/completions/hwctl, in a checkout source"
            " completions/hwctl.bash; ~/.bashrc keeps it.",
        ),
        Entry(
            "zsh",
            "fpath=(VENV/share/zsh/site-functions $fpath), in a checkout fpath=($PWD/completions $fpath),"
            " before autoload -Uz compinit && compinit in ~/.zshrc.",
        ),
        Entry(
            "fish",
            "source VENV/share/fish/vendor_completions.d/hwctl.fish, in a checkout source"
            " completions/hwctl.fish; ~/.config/fish/config.fish keeps it.",
        ),
    ),
)

UNITS = Section(
    "Units",
    (
        Entry(
            "SIZE",
            "200GiB and 200Gi are 2^30, 200GB is 10^9, a plain number is bytes, 80% is a share where a whole"
            " is known. A bare G is refused.",
        ),
        Entry("DURATION", "90s, 15min, 6h, 2d, 1w, combined as in 1h30min, or 1.5s. A bare m is refused."),
        Entry("RANGE", "0-3,7,10- : inclusive, the last may be open."),
        Entry("GLOB", "As the shell writes it, on the key: artifact key, run id, page prefix."),
    ),
)

DOCUMENTS = Section(
    "JSON documents",
    (
        Entry(
            "",
            "Every document has schema (with a number), hwctl, host, started, seconds, status, exit_status,"
            " dry_run, results, totals and warnings. Sizes are integers in bytes, times RFC 3339 in UTC. A"
            " name that is not UTF-8 has its bytes in base64 beside it, as path_b64. JSON Schemas lie in"
            " the package's folder hwctl/schemas.",
        ),
    ),
)

FINDINGS = Section("Finding codes", tuple(Entry(code, words) for code, words in sorted(CODES.items())))


def chapters(path: tuple[str, ...]) -> list[Section]:
    """The common chapters of a command's page."""
    if len(path) == 1:
        return [WORDS, UNITS, EXIT_STATUS, ENVIRONMENT, FILES, COMPLETION, DOCUMENTS]
    if path == ("hwctl", "verify"):
        return [FINDINGS, EXIT_STATUS, ENVIRONMENT, FILES]
    return [EXIT_STATUS, ENVIRONMENT, FILES]


def see_also(verb: Verb) -> list[str]:
    """The pages of the commands below, else of the one above and its siblings that matter most."""
    if verb.verbs:
        return ["-".join(child.path) for child in verb.verbs]
    above = ["-".join(verb.path[: depth + 1]) for depth in range(len(verb.path) - 1)]
    return [*above, *(name for name in ("hwctl-inspect", "hwctl-verify") if name != "-".join(verb.path))]
