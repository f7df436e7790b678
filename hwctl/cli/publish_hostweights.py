"""``hwctl publish hostweights``: a checkpoint, or an artifact of another store, into a host weight store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli import publishing_hostweights as publishing
from hwctl.cli.answer import Answer
from hwctl.cli.publishing_hostweights import Scope
from hwctl.errors import Usage

EXAMPLES = """
Examples:

  hwctl publish hostweights --from ~/models/Qwen3-8B --store /srv/weights

  hwctl publish hostweights --from /mnt/old/artifacts/KEY --store /srv/weights     a verified copy

  hwctl publish hostweights --from ckpt --store /srv/weights --identity id.json --wait 1h
"""


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
    wait: params.PublishWait = None,
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
    params.require_family(family, params.Family.HOSTWEIGHTS, "publish hostweights")
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
                naming=publishing.naming(identity, trust_identity, model_id, revision),
                format_metadata=publishing.metadata(format_metadata),
                ordered=ordered,
                wanted=publishing.wanted(scope, domain_id, max_artifact_size, max_store_size, min_free),
                work=Work(
                    params.default_jobs(jobs),
                    params.PUBLISH_WAIT_SECONDS if wait is None else wait,
                    progress.advance,
                    progress.expect,
                ),
                words=sys.argv[1:],
            )
            result = core.foresee(request) if dry_run else core.publish(request)
        publishing.tell(answer, result)
    return answer.exit_status
