"""``hwctl publish pageweights``: one page of weights into a page-weights cache, bound to its source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwctl.cli import params, text, units
from hwctl.cli.answer import Answer
from hwctl.cli.document import artifact_fields
from hwctl.cli.output import Whole
from hwctl.errors import Usage
from hwctl.stores.pageweights.layout import DEFAULT_ROOT

if TYPE_CHECKING:
    from hwctl.core.publish_pageweights import FromSource, PublishResult
    from hwctl.stores.pageweights.eviction import Eviction

EXAMPLES = """
Examples:
  hwctl publish pageweights --page page7.safetensors --cache /dev/shm/pages --authority page7.json
  hwctl publish pageweights --page page7.safetensors --source session --source-format-revision 1 --page-id 7

The eleven tensors of a page:
  page_ids_t  the number of the page, one int64
  ffn_mode_t gate_t up_t down_t glyph_down_t glyph_up_t
        and translation_gate_t, outcome_memory_t, repair_memory_t, transfer_memory_t: the weights, all of the
        dtype that the authority names

The seven fields of an authority:
  contractRevision  1
  pageId  the number of the page
  sourceObjectSha256 sourceObjectBytes  digest and size of the object that the page was rebuilt from
  sourceFileIdentity  [device, inode, size, mtime in ns, ctime in ns] of that file
  sourceFormatRevision  the revision of its format
  materializedDtype  torch's name of the weights' dtype, such as bfloat16
"""


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 20:
        raise typer.BadParameter(f"{text!r} is not a whole number of at least 0")
    return int(text)


_Page = Annotated[
    Path,
    typer.Option(
        "--page",
        metavar="FILE",
        parser=units.path,
        show_default=False,
        help="A safetensors file with the page's eleven tensors.",
    ),
]
_Cache = Annotated[
    Path,
    typer.Option(
        "--cache",
        metavar="ROOT",
        parser=units.path,
        help="The cache's root; it is created, mode 0700, when it is new.",
    ),
]
_Authority = Annotated[
    Path | None,
    typer.Option(
        "--authority",
        metavar="FILE",
        parser=units.path,
        show_default=False,
        help="The authority to publish under, a JSON object of seven fields.",
    ),
]
_Source = Annotated[
    Path | None,
    typer.Option(
        "--source",
        metavar="OBJECT",
        parser=units.path,
        show_default=False,
        help="Derive the authority from this source object, which is hashed; the dtype is the page's.",
    ),
]
_FormatRevision = Annotated[
    int | None,
    typer.Option(
        "--source-format-revision",
        metavar="N",
        parser=units.count,
        show_default=False,
        help="With --source: the revision of the source's format.",
    ),
]
_PageId = Annotated[
    int | None,
    typer.Option(
        "--page-id",
        metavar="N",
        parser=_whole_number,
        show_default=False,
        help="With --source: which page of it this is.",
    ),
]
_Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        metavar="SIZE",
        parser=units.size,
        show_default=False,
        help="Evict afterwards what no locator names, and then the least recently used other pages, until"
        " all artifacts together fit; without it nothing is evicted. The cache's own program allows itself a"
        " 16th of memory or a quarter of the file system, whichever is less.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("pageweights", epilog=EXAMPLES)(publish_pageweights)


def publish_pageweights(
    page: _Page,
    cache: _Cache = DEFAULT_ROOT,
    authority: _Authority = None,
    source: _Source = None,
    source_format_revision: _FormatRevision = None,
    page_id: _PageId = None,
    budget: _Budget = None,
    dry_run: params.DryRun = False,
    yes: params.Yes = False,
    wait: params.PublishWait = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Publish a page into a page-weights cache and print the path of its locator.

    The page is checked while it is written, and hashed on the way; what the cache's own program could not
    load is refused before the first byte. A page that is there already is success; one that another process
    is building is waited for (--wait, 10min unless given) and joined. Under the same authority other content
    is refused, and a damaged page stays until it is quarantined. A dry run tells what would go for the
    budget; it does not read the weights that are offered, so a NaN among them shows when they are published.
    """
    params.require_family(family, params.Family.PAGEWEIGHTS, "publish pageweights")
    wanted = _wanted(authority, source, source_format_revision, page_id)
    with Answer(
        "publish pageweights", json=json, quiet=quiet, verbose=verbose, color=color, dry_run=dry_run
    ) as answer:
        from hwctl.core import publish_pageweights as core

        with answer.progress("publish") as progress:
            request = core.Request(
                page=page,
                cache=cache.absolute(),
                authority=wanted,
                budget=budget,
                wait=params.PUBLISH_WAIT_SECONDS if wait is None else wait,
                advance=progress.advance,
                expect=progress.expect,
                words=sys.argv[1:],
            )
            result = core.foresee(request) if dry_run else core.publish(request)
        _tell(answer, result)
    return answer.exit_status


def _wanted(
    authority: Path | None, source: Path | None, revision: int | None, page_id: int | None
) -> Path | FromSource:
    from hwctl.core.publish_pageweights import FromSource

    if authority is not None and source is None and revision is None and page_id is None:
        return authority
    if authority is not None:
        raise Usage(
            "--authority says everything; --source, --source-format-revision and --page-id derive one"
        )
    if source is None or revision is None or page_id is None:
        raise Usage("needs --authority, or all of --source, --source-format-revision and --page-id")
    return FromSource(source, revision, page_id)


def _tell(answer: Answer, result: PublishResult) -> None:
    evicted = () if result.eviction is None else result.eviction.evicted
    answer.result(
        {
            **artifact_fields(result.artifact),
            "outcome": result.outcome.value,
            "cache_key": result.cache_key,
            "artifact_sha256": result.artifact_sha256,
            "manifest_sha256": result.manifest_sha256,
            "evicted": list(evicted),
            "reclaimed": list(() if result.eviction is None else result.eviction.reclaimed),
            "findings": [],
        }
    )
    answer.totals.update(bytes=result.artifact.bytes, files=result.artifact.files)
    answer.line(Whole(result.artifact.path))
    answer.note(f"{result.outcome.value.replace('-', ' ')}: {text.size(result.artifact.bytes)}")
    if result.replaced:
        became = "is in its place and will go" if answer.dry_run else "was in its place and is gone"
        answer.warn(f"the rest of an incomplete page {became}")
    if result.not_evicted is not None:
        lead = "it cannot be told what would go" if answer.dry_run else "the page stands; nothing was evicted"
        answer.warn(f"{lead}: {result.not_evicted}")
    if result.eviction is not None:
        _tell_eviction(answer, result.eviction)


def _tell_eviction(answer: Answer, eviction: Eviction) -> None:
    """What went for the budget; a dry run names each page, since nothing is deleted without a plan."""
    if answer.dry_run:
        for key in eviction.reclaimed:
            answer.note(f"will go: {key}, which no locator names")
        for prefix in eviction.evicted:
            answer.note(f"will be evicted: page {prefix}")
    else:
        answer.totals["bytes_freed"] = eviction.removed.bytes_freed
        words = []
        if eviction.reclaimed:
            words.append(f"reclaimed {text.number(len(eviction.reclaimed), 'orphan')}")
        if eviction.evicted:
            words.append(f"evicted {text.number(len(eviction.evicted), 'page')}")
        if words:
            answer.note(f"{', '.join(words)}, {text.size(eviction.removed.bytes_freed)} freed")
    tense = "will not be" if answer.dry_run else "was not"
    for passed in eviction.passed:
        answer.warn(f"page {passed.prefix} {tense} evicted: {passed.reason}")
    if not eviction.reached:
        over = text.size(eviction.remaining - eviction.budget)
        answer.warn(f"the cache {'would be' if answer.dry_run else 'is'} still {over} over its budget")
