"""``hwctl publish hostweights``: a checkpoint, or an artifact of another store, into a host weight store."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwctl.cli import params, text, units
from hwctl.cli.answer import Answer
from hwctl.cli.document import artifact_fields
from hwctl.errors import Usage
from hwctl.stores.base import Family, State

if TYPE_CHECKING:
    from hwctl.core.publish_hostweights import PublishResult
    from hwctl.core.publish_material import FormatMetadata, Naming
    from hwctl.stores.base import Artifact
    from hwctl.stores.hostweights.opening import Wanted

EXAMPLES = """
Examples:

  hwctl publish hostweights --from ~/models/Qwen3-8B --store /srv/weights

  hwctl publish hostweights --from /mnt/old/artifacts/KEY --store /srv/weights     a verified copy

  hwctl publish hostweights --from ckpt --store /srv/weights --identity id.json --wait 1h
"""

_WAIT_SECONDS = 600.0
_FORMAT_METADATA_LIMIT = 16 << 20


class Scope(StrEnum):
    """What a store serves, as its domain document spells it."""

    NODE = "node"
    NUMA = "numa"


_From = Annotated[
    Path,
    typer.Option(
        "--from",
        metavar="CHECKPOINT|ARTIFACT",
        parser=units.path,
        help="A .safetensors file, a folder of them, a snapshot of the Hugging Face cache, or an artifact.",
        show_default=False,
    ),
]
_Store = Annotated[
    Path,
    typer.Option(
        "--store",
        metavar="ROOT",
        parser=units.path,
        help="The store; it is created, mode 0700, when it is new.",
        show_default=False,
    ),
]
_Identity = Annotated[
    Path | None,
    typer.Option(
        "--identity",
        metavar="FILE",
        parser=units.path,
        show_default=False,
        help="Publish under this identity instead of one derived from the files.",
    ),
]
_Trust = Annotated[
    bool,
    typer.Option(
        "--trust-identity",
        help="Take the identity of another producer though it does not state these tensors.",
    ),
]
_ModelId = Annotated[
    str | None,
    typer.Option(
        "--model-id",
        metavar="NAME",
        parser=units.word,
        show_default=False,
        help="The model's name in a derived identity; else from the snapshot's path, else the folder's name.",
    ),
]
_Revision = Annotated[
    str | None,
    typer.Option(
        "--revision",
        metavar="NAME",
        parser=units.word,
        show_default=False,
        help="The revision in a derived identity; else the snapshot's commit, else local.",
    ),
]
_FormatMetadata = Annotated[
    Path | None,
    typer.Option(
        "--format-metadata",
        metavar="FILE",
        parser=units.path,
        show_default=False,
        help="A JSON value to keep in the manifest as format_metadata.",
    ),
]
_Ordered = Annotated[
    bool, typer.Option("--ordered", help="Insist on writing every payload in one pass, in name order.")
]
_Scope = Annotated[
    Scope | None,
    typer.Option("--scope", show_default=False, help="At creation: what a store serves."),
]
_DomainId = Annotated[
    str | None,
    typer.Option(
        "--domain-id",
        metavar="NAME",
        parser=units.word,
        show_default=False,
        help="At creation: which node or NUMA node that is; node unless given.",
    ),
]
_MaxArtifact = Annotated[
    int | None,
    typer.Option(
        "--max-artifact-size",
        metavar="SIZE",
        parser=units.size,
        show_default=False,
        help="At creation: refuse larger artifacts. vLLM-Omni opens only a store without limits.",
    ),
]
_MaxStore = Annotated[
    int | None,
    typer.Option(
        "--max-store-size",
        metavar="SIZE",
        parser=units.size,
        show_default=False,
        help="At creation: refuse what would make the store larger.",
    ),
]
_MinFree = Annotated[
    int | None,
    typer.Option(
        "--min-free",
        metavar="SIZE",
        parser=units.size,
        show_default=False,
        help="At creation: refuse what would leave less free on the file system.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("hostweights", epilog=EXAMPLES)(publish_hostweights)


def publish_hostweights(
    source: _From,
    store: _Store,
    identity: _Identity = None,
    trust_identity: _Trust = False,
    model_id: _ModelId = None,
    revision: _Revision = None,
    format_metadata: _FormatMetadata = None,
    ordered: _Ordered = False,
    scope: _Scope = None,
    domain_id: _DomainId = None,
    max_artifact_size: _MaxArtifact = None,
    max_store_size: _MaxStore = None,
    min_free: _MinFree = None,
    jobs: params.Jobs = None,
    dry_run: params.DryRun = False,
    yes: params.Yes = False,
    wait: params.Wait = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Publish weights into a host weight store and print the path of the artifact.

    A checkpoint is read in full before anything is written: every shard that is missing, damaged or not
    what the index says is listed, and nothing is published. An artifact of another store is verified in full
    and copied with its identity. An artifact that is there already is success: its documents and sizes are
    checked, not its bytes. One that does not pass is moved to quarantine with a warning and published anew;
    one that another process is building is waited for (--wait, 10min unless given) and joined. Under the
    same identity other content is refused.

    A store belongs to one user and is made with mode 0700, since vLLM-Omni refuses any other: publish as the
    user that serves from it.
    """
    if family not in (None, Family.HOSTWEIGHTS):
        raise Usage("publish hostweights is of the family hostweights only")
    if identity is None and trust_identity:
        raise Usage("--trust-identity belongs to --identity")
    if identity is not None and (model_id or revision):
        raise Usage("--identity names the model already; --model-id and --revision are for a derived one")
    with Answer(
        "publish hostweights", json=json, quiet=quiet, verbose=verbose, color=color, dry_run=dry_run
    ) as answer:
        from hwctl.core import publish_hostweights as core
        from hwctl.core.publish_material import Work

        with answer.progress("publish") as progress:
            request = core.Request(
                source=source,
                store=store,
                naming=_naming(identity, trust_identity, model_id, revision),
                format_metadata=_metadata(format_metadata),
                ordered=ordered,
                wanted=_wanted(scope, domain_id, max_artifact_size, max_store_size, min_free),
                work=Work(
                    params.default_jobs(jobs),
                    _WAIT_SECONDS if wait is None else wait,
                    progress.advance,
                    progress.expect,
                ),
                words=sys.argv[1:],
            )
            result = core.foresee(request) if dry_run else core.publish(request)
        _tell(answer, result)
    return answer.exit_status


def _naming(identity: Path | None, trust: bool, model_id: str | None, revision: str | None) -> Naming:
    from hwctl.core.expected import read_identity_file
    from hwctl.core.publish_material import Naming

    found = None if identity is None else read_identity_file(identity)
    return Naming(found, trust, model_id, revision)


def _metadata(path: Path | None) -> FormatMetadata | None:
    from hwctl.core.publish_material import FormatMetadata
    from hwctl.fs.paths import read_document
    from hwctl.stores.hostweights import canonical

    if path is None:
        return None
    try:
        return FormatMetadata(canonical.parse(read_document(path, limit=_FORMAT_METADATA_LIMIT).data).value)
    except OSError as exc:
        raise Usage(f"cannot read {path}: {exc.strerror or exc}", path=path) from exc
    except canonical.BadDocument as exc:
        raise Usage(f"{path} {exc}", path=path) from exc


def _wanted(
    scope: Scope | None,
    domain_id: str | None,
    max_artifact: int | None,
    max_store: int | None,
    min_free: int | None,
) -> Wanted:
    """What is asked of the store. Limits that were not named are not asked for at all, so that an existing
    store keeps its own."""
    from hwctl.stores.hostweights.domain import Capacity
    from hwctl.stores.hostweights.opening import Wanted

    named_any = any(limit is not None for limit in (max_artifact, max_store, min_free))
    return Wanted(
        scope=None if scope is None else scope.value,
        domain_id=domain_id,
        capacity=Capacity(max_artifact, max_store, min_free or 0) if named_any else None,
    )


def _tell(answer: Answer, result: PublishResult) -> None:
    for name in result.unused:
        answer.warn(f"{name} lies beside the index and is not named by it; it was left out")
    if result.unsound is not None:
        became = "will be set aside" if result.set_aside is None else f"was set aside: {result.set_aside}"
        answer.warn(f"the artifact that was there was not sound ({result.unsound}) and {became}")
    artifact = _artifact(result)
    answer.result(
        {
            **artifact_fields(artifact),
            "outcome": result.outcome.value,
            "manifest_sha256": result.manifest_sha256,
            "tensors": result.tensors,
            "findings": [],
        }
    )
    answer.totals.update(bytes=result.bytes, files=result.files, tensors=result.tensors)
    answer.line(str(result.path))
    answer.note(f"{text.looked_up(result.outcome.value)}: {_measure(result, artifact)}")


def _measure(result: PublishResult, artifact: Artifact) -> str:
    """The size as inspect counts it, the two documents too; of a plan it is known of the tensors alone."""
    size = text.size(artifact.bytes)
    if artifact.state is State.ABSENT:
        return f"{result.tensors} tensors of {size} in {text.number(result.files, 'payload')}"
    return f"{result.tensors} tensors, {size} in {text.number(artifact.files, 'file')}"


def _artifact(result: PublishResult) -> Artifact:
    """The artifact as a scan sees it, or what it would be."""
    from hwctl.stores.base import Artifact
    from hwctl.stores.hostweights.store import open_store

    planned = Artifact(
        Family.HOSTWEIGHTS,
        result.store,
        result.key,
        result.path,
        State.ABSENT,
        result.bytes,
        files=result.files,
    )
    if result.manifest_sha256 is None:
        return planned
    return open_store(result.store).look(planned) or planned
