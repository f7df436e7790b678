"""Published lifecycle cases: each builds one damaged (or sound) kt-int8 root under a base directory.

`cases` maps an id to a Case; `cases[id]["build"](base)` builds it and returns the root to hand to the
operation named by "op". Wanted verdicts: accept, reject (clean error, nothing under base changed), reclaim
(tree removed), keep (tree left alone, reported as live), either. See verdicts.json for what kt-kernel 0.7.2
does.
"""

import json
import os
from pathlib import Path

from ktroot import (
    DEAD_PID,
    LEASE,
    MANIFEST,
    MANIFEST_V2,
    RUN,
    dump,
    hold_lock,
    kt_files,
    kt_name,
    lease,
    one,
    persistent,
    ready,
    registry,
    remake,
    staging,
)

cases, case = registry()

# ---------------------------------------------------------------- publish a staging tree


@case(
    "publish-valid",
    "publish",
    "complete tree with a lease of a dead producer that is not us",
    "either",
    note="a lease whose producer is gone is adopted only on request; upstream never looks at the pid here",
)
def _(base):
    return staging(base)


@case("publish-own-lease", "publish", "complete tree, lease names the publishing process", "accept")
def _(base):
    return staging(base, lease_doc=lease(pid=os.getpid()))


@case("publish-missing-file", "publish", "one quant file is missing", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    one(r, "up", 1, "quant").unlink()
    return r


@case("publish-extra-file", "publish", "a stray README in a NUMA directory", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    (r / "_layer_3/_numa_0/README").write_text("x")
    return r


@case("publish-extra-root-file", "publish", "a stray file beside the layer directories", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    (r / "notes.txt").write_text("x")
    return r


@case("publish-symlinked-file", "publish", "one .kt is a symlink to an equal file elsewhere", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    p = one(r)
    out = base / "elsewhere.kt"
    p.rename(out)
    p.symlink_to(out)
    return r


@case("publish-symlinked-layer", "publish", "a layer directory is a symlink", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    (r / "_layer_3").rename(base / "layer3")
    (r / "_layer_3").symlink_to(base / "layer3")
    return r


@case("publish-fifo", "publish", "a FIFO with a legal .kt name", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    p = one(r)
    p.unlink()
    os.mkfifo(p, 0o600)
    return r


@case("publish-empty-file", "publish", "a zero-byte quant file", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    one(r).write_bytes(b"")
    return r


@case(
    "publish-truncated-file",
    "publish",
    "a quant file shorter than its own name says (what a full tmpfs leaves)",
    "reject",
)
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    p = one(r)
    os.truncate(p, p.stat().st_size - 96)
    return r


@case("publish-group-writable", "publish", "root mode 0770", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    r.chmod(0o770)
    return r


@case("publish-subdir-world-writable", "publish", "a NUMA directory with mode 0777", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    (r / "_layer_3/_numa_0").chmod(0o777)
    return r


@case("publish-foreign-owner-root", "publish", "root owned by another uid", "reject", needs_root=True)
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    os.chown(r, 65534, 65534)
    return r


@case("publish-short-run-id", "publish", "run id of five characters", "reject", run="abcde")
def _(base):
    return staging(base, run="abcde")


@case(
    "publish-run-id-ends-in-staging",
    "publish",
    "run id 'case-run-01.staging': its ready root has the name of another run's staging root",
    "reject",
    run="case-run-01.staging",
)
def _(base):
    return staging(base, run="case-run-01.staging", lease_doc=lease("case-run-01.staging", os.getpid()))


@case("publish-ready-exists", "publish", "a non-empty ready root of that name exists", "reject")
def _(base):
    ready(base)
    return staging(base, lease_doc=lease(pid=os.getpid()))


@case("publish-ready-dangling-link", "publish", "the ready name is taken by a dangling symlink", "reject")
def _(base):
    (base / f"kt-int8-{RUN}").symlink_to(base / "nowhere")
    return staging(base, lease_doc=lease(pid=os.getpid()))


@case("publish-lease-other-uid", "publish", "lease names another uid", "reject")
def _(base):
    return staging(base, lease_doc={**lease(pid=os.getpid()), "owner_uid": os.getuid() + 1})


@case("publish-lease-is-a-list", "publish", "lease JSON is a list", "reject")
def _(base):
    return staging(base, lease_doc=[1, 2])


@case("publish-lease-symlink", "publish", "lease is a symlink", "reject")
def _(base):
    r = staging(base, lease_doc=None)
    dump(base / "lease.json", lease(pid=os.getpid()))
    (r / LEASE).symlink_to(base / "lease.json")
    return r


@case(
    "publish-lease-of-live-stranger",
    "publish",
    "lease names a live process that is not the publisher (pid 1)",
    "reject",
)
def _(base):
    return staging(base, lease_doc=lease(pid=1))


@case("publish-duplicate-identity", "publish", "two files for one (part, projection, expert, kind)", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    p = one(r)
    (p.parent / kt_name("gate", 0, "quant", 7)).write_bytes(b"1234567")
    return r


@case("publish-unicode-digit-expert", "publish", "expert number written with an Arabic-Indic digit", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    p = one(r, "gate", 1)
    p.rename(p.parent / kt_name("gate", "\u0661", "quant", 4096))
    return r


@case("publish-expert-out-of-range", "publish", "a file for expert 2 of 2", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    (r / "_layer_3/_numa_0" / kt_name("gate", 2, "quant", 4096)).write_bytes(b"\0" * 4096)
    return r


@case("publish-backward-files", "publish", "tree also holds gate_bwd files", "reject")
def _(base):
    r = staging(base, lease_doc=lease(pid=os.getpid()))
    (r / "_layer_3/_numa_0" / kt_name("gate_bwd", 0, "quant", 4096)).write_bytes(b"\0" * 4096)
    return r


@case("publish-no-layers", "publish", "an empty staging root and an empty layer list", "reject", layers=())
def _(base):
    r = base / f"kt-int8-{RUN}.staging"
    r.mkdir(mode=0o700)
    dump(r / LEASE, lease(pid=os.getpid()))
    return r


@case("publish-root-is-a-file", "publish", "the staging root is a regular file", "reject")
def _(base):
    r = base / f"kt-int8-{RUN}.staging"
    r.write_text("x")
    r.chmod(0o600)
    return r


# ---------------------------------------------------------------- open a ready root


def _doc(**changes):
    return lambda d: d.update(changes)


@case("open-valid", "open", "sound ready root", "accept")
def _(base):
    return ready(base)


@case("open-extra-top-level-keys", "open", "unknown top-level keys in the manifest", "accept")
def _(base):
    return ready(base, edit=_doc(hwctl={"version": "x"}, note="kept"))


@case("open-no-manifest", "open", "manifest missing", "reject")
def _(base):
    r = ready(base)
    (r / MANIFEST).unlink()
    return r


@case("open-manifest-is-a-list", "open", "manifest JSON is a list", "reject")
def _(base):
    r = ready(base)
    dump(r / MANIFEST, "[]")
    return r


@case("open-trailing-garbage", "open", "bytes after the manifest's closing brace", "reject")
def _(base):
    r = ready(base)
    dump(r / MANIFEST, (r / MANIFEST).read_text() + "}garbage")
    return r


@case("open-bom", "open", "manifest starts with a UTF-8 byte-order mark", "reject")
def _(base):
    r = ready(base)
    dump(r / MANIFEST, "\ufeff" + (r / MANIFEST).read_text())
    return r


@case("open-deep-nesting", "open", "manifest is 100 000 nested arrays", "reject")
def _(base):
    r = ready(base)
    dump(r / MANIFEST, "[" * 100_000 + "]" * 100_000)
    return r


@case("open-duplicate-json-key", "open", "the key 'layers' appears twice, the first one empty", "reject")
def _(base):
    r = ready(base)
    dump(r / MANIFEST, '{"layers":[],' + (r / MANIFEST).read_text()[1:])
    return r


@case("open-expert-count-true", "open", "expert_num is JSON true in a one-expert store", "reject", experts=1)
def _(base):
    return ready(base, geo={"experts": 1}, edit=_doc(expert_num=True))


@case("open-layer-index-true", "open", "layer index 1 written as JSON true", "reject", layers=(0, 1))
def _(base):
    def edit(d):
        d["layers"][1]["index"] = True

    return ready(base, geo={"layers": (0, 1)}, edit=edit)


@case("open-layer-index-missing", "open", "a layer record without an index", "reject")
def _(base):
    def edit(d):
        del d["layers"][0]["index"]

    return ready(base, edit=edit)


@case("open-layer-not-an-object", "open", "a layer record is a number", "reject")
def _(base):
    def edit(d):
        d["layers"][0] = 3

    return ready(base, edit=edit)


@case("open-layers-is-an-object", "open", "'layers' is an object", "reject")
def _(base):
    def edit(d):
        d["layers"] = {"3": d["layers"][0]}

    return ready(base, edit=edit)


@case("open-duplicate-layer", "open", "layer 3 is listed twice", "reject")
def _(base):
    def edit(d):
        d["layers"].append(d["layers"][0])

    return ready(base, edit=edit)


@case("open-layer-consuming", "open", "layer 3 is in state consuming", "reject")
def _(base):
    def edit(d):
        d["layers"][0]["state"] = "consuming"

    return ready(base, edit=edit)


@case("open-state-staging", "open", "top-level state is 'staging'", "reject")
def _(base):
    return ready(base, edit=_doc(state="staging"))


@case("open-size-wrong", "open", "one size is off by one", "reject")
def _(base):
    def edit(d):
        d["layers"][0]["files"][0]["size_bytes"] += 1

    return ready(base, edit=edit)


@case("open-size-float", "open", "one size is written as 4096.9", "reject")
def _(base):
    def edit(d):
        f = next(f for f in d["layers"][0]["files"] if f["size_bytes"] == 4096)
        f["size_bytes"] = 4096.9

    return ready(base, edit=edit)


@case("open-size-huge", "open", "one size has 400 digits", "reject")
def _(base):
    def edit(d):
        d["layers"][0]["files"][0]["size_bytes"] = 10**400

    return ready(base, edit=edit)


@case("open-size-null", "open", "one size is null", "reject")
def _(base):
    def edit(d):
        d["layers"][0]["files"][0]["size_bytes"] = None

    return ready(base, edit=edit)


@case("open-path-traversal", "open", "a path with ..", "reject")
def _(base):
    def edit(d):
        f = d["layers"][0]["files"][0]
        f["path"] = "_layer_3/../_layer_3/" + f["path"].split("/", 1)[1]

    return ready(base, edit=edit)


@case("open-path-of-other-layer", "open", "layer 3 lists a file of layer 4", "reject")
def _(base):
    def edit(d):
        d["layers"][0]["files"][0] = d["layers"][1]["files"][0]

    return ready(base, edit=edit)


@case("open-path-duplicate", "open", "one path listed twice", "reject")
def _(base):
    def edit(d):
        d["layers"][0]["files"][1] = d["layers"][0]["files"][0]

    return ready(base, edit=edit)


@case("open-missing-file", "open", "a listed file is gone", "reject")
def _(base):
    r = ready(base)
    one(r).unlink()
    return r


@case("open-extra-root-file", "open", "an unlisted file in the root", "reject")
def _(base):
    r = ready(base)
    (r / "notes.txt").write_text("x")
    return r


@case(
    "open-leftover-manifest-tmp",
    "open",
    "a dead writer's .kt-ephemeral-manifest.json.PID.tmp lies in the root",
    "reject",
)
def _(base):
    r = ready(base)
    dump(r / f".{MANIFEST}.{DEAD_PID}.tmp", "{")
    return r


@case("open-extra-symlinked-dir", "open", "a layer directory also holds a symlink to a directory", "reject")
def _(base):
    r = ready(base)
    (base / "outside").mkdir()
    (r / "_layer_3/link").symlink_to(base / "outside")
    return r


@case("open-symlinked-root", "open", "the ready root is a symlink", "reject")
def _(base):
    r = ready(base, run="real-root-01", edit=_doc(run_id=RUN))
    link = base / f"kt-int8-{RUN}"
    link.symlink_to(r)
    return link


@case("open-group-writable", "open", "ready root mode 0770", "reject")
def _(base):
    r = ready(base)
    r.chmod(0o770)
    return r


@case(
    "open-fewer-files-consistently",
    "open",
    "expert 1's up projection removed from disk and manifest alike",
    "reject",
)
def _(base):
    r = ready(base)
    for k in ("quant", "scale"):
        one(r, "up", 1, k).unlink()
    dump(r / MANIFEST, remake(r))
    return r


@case(
    "open-wrong-shape-consistently",
    "open",
    "every quant file of layer 3 is one byte longer, manifest agrees",
    "reject",
)
def _(base):
    r = ready(base)
    for n in (0, 1):
        for p in kt_files(r, 3, n):
            if "quant" in p.name:
                p.write_bytes(p.read_bytes() + b"\0")
    dump(r / MANIFEST, remake(r))
    return r


@case("open-layer-bytes-wrong", "open", "a layer's byte total is off by one", "reject")
def _(base):
    def edit(d):
        d["layers"][0]["bytes"] += 1

    return ready(base, edit=edit)


@case(
    "open-numa-count-huge",
    "open-close",
    "a layer record's numa_count is 10**8 (the top-level count is right)",
    "reject",
    note="upstream's cleanup loops over that count: 10**8 takes minutes, 10**12 never ends",
)
def _(base):
    def edit(d):
        d["layers"][0]["numa_count"] = 10**8

    return ready(base, edit=edit)


@case("open-hidden-size-differs", "open", "manifest's hidden_size is not the model's", "reject")
def _(base):
    return ready(base, edit=_doc(hidden_size=128))


@case("open-renamed-root", "open", "root renamed, so that its name no longer matches run_id", "reject")
def _(base):
    r = ready(base)
    new = base / "kt-int8-other-run-9"
    r.rename(new)
    return new


@case("open-hardlinked-file", "open", "one .kt has a second hard link outside the root", "reject")
def _(base):
    r = ready(base)
    os.link(one(r), base / "second-name")
    return r


# ---------------------------------------------------------------- consume


@case("consume-all", "consume-all", "open, consume both layers out of order, finish", "accept", order=(4, 3))
def _(base):
    return ready(base)


@case(
    "consume-symlinked-layer-outside",
    "consume-all",
    "layer 3 is a symlink to a directory outside the root, with the listed files in it",
    "reject",
)
def _(base):
    r = ready(base)
    (r / "_layer_3").rename(base / "outside3")
    (r / "_layer_3").symlink_to(base / "outside3")
    return r


@case(
    "consume-unknown-layer", "consume-all", "ask for a layer the manifest does not list", "reject", order=(9,)
)
def _(base):
    return ready(base)


def _late_file(base, root):
    (root / "late.txt").write_text("x")


@case(
    "consume-finish-extra-file",
    "consume-all",
    "a stray file appears in the root before finish",
    "either",
    after_open=_late_file,
    note="upstream deletes the manifest first, then fails on rmdir: the root stays, unreadable",
)
def _(base):
    return ready(base)


def _late_tmp(base, root):
    dump(root / f".{MANIFEST}.{os.getpid()}.tmp", "{")


@case(
    "consume-tmp-of-same-pid",
    "consume-all",
    "a leftover temporary with the consumer's own pid (pid reuse)",
    "accept",
    after_open=_late_tmp,
    note="upstream's exclusive create fails and leaves the layer 'consuming'",
)
def _(base):
    return ready(base)


# ---------------------------------------------------------------- reclaim a staging tree


@case("reclaim-dead", "reclaim", "lease of a dead pid", "reclaim")
def _(base):
    return staging(base)


@case("reclaim-no-lease", "reclaim", "no lease at all", "reject")
def _(base):
    return staging(base, lease_doc=None)


@case("reclaim-pid-missing", "reclaim", "lease without producer_pid", "reject")
def _(base):
    d = lease()
    del d["producer_pid"]
    return staging(base, lease_doc=d)


@case("reclaim-pid-null", "reclaim", "producer_pid is null", "reject")
def _(base):
    return staging(base, lease_doc=lease(pid=None))


@case("reclaim-pid-digit-string", "reclaim", "producer_pid is the string of a dead pid", "reject")
def _(base):
    return staging(base, lease_doc=lease(pid=str(DEAD_PID)))


@case(
    "reclaim-pid-huge",
    "reclaim",
    "producer_pid is 2**63",
    "reject",
    note="no such process can exist; upstream takes that for 'dead' and deletes",
)
def _(base):
    return staging(base, lease_doc=lease(pid=2**63))


@case("reclaim-pid-nan", "reclaim", "producer_pid is NaN", "reject")
def _(base):
    return staging(
        base,
        lease_doc=f'{{"schema_version":1,"run_id":"{RUN}","owner_uid":{os.getuid()},"producer_pid":NaN}}',
    )


@case(
    "reclaim-pid-reused",
    "reclaim",
    "the pid is alive but is not the process that took the lease (start time differs)",
    "reclaim",
    note="only a lease with start ticks and boot id (hwctl's own keys) can tell",
)
def _(base):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return staging(
        base,
        lease_doc=lease(
            pid=1, hwctl={"boot_id": boot, "start_ticks": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}
        ),
    )


@case(
    "reclaim-other-boot",
    "reclaim",
    "the lease's boot id is not this boot's, though the pid is alive",
    "reclaim",
    note="only possible where the base outlives a boot, i.e. not tmpfs",
)
def _(base):
    return staging(
        base,
        lease_doc=lease(
            pid=1,
            hwctl={
                "boot_id": "00000000-0000-0000-0000-000000000000",
                "start_ticks": 1,
                "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
            },
        ),
    )


@case(
    "reclaim-locked",
    "reclaim",
    "the lease's pid is unknown here, but a live process holds the lock on the root",
    "keep",
    note="the lock is hwctl's; it is seen across pid namespaces, /proc is not",
)
def _(base):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    r = staging(
        base,
        lease_doc=lease(
            hwctl={"boot_id": boot, "start_ticks": 5, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}
        ),
    )
    hold_lock(r)
    return r


@case(
    "open-locked",
    "open",
    "another process holds the lock on the ready root",
    "reject",
    note="kt-kernel takes no lock and lets two consumers destroy each other's data",
)
def _(base):
    r = ready(base)
    hold_lock(r)
    return r


@case("reclaim-lease-is-a-list", "reclaim", "lease JSON is a list", "reject")
def _(base):
    return staging(base, lease_doc=[])


@case("reclaim-lease-other-uid", "reclaim", "lease names another uid", "reject")
def _(base):
    return staging(base, lease_doc={**lease(), "owner_uid": os.getuid() + 1})


@case(
    "reclaim-lease-uid-false",
    "reclaim",
    "owner_uid is JSON false and the caller is uid 0",
    "reject",
    needs_root=True,
)
def _(base):
    return staging(base, lease_doc={**lease(), "owner_uid": False})


@case(
    "reclaim-foreign-content",
    "reclaim",
    "the staging tree also holds a symlink to a directory outside and a stray file",
    "either",
    note="whatever is decided, nothing outside the tree may be touched",
)
def _(base):
    r = staging(base)
    (base / "outside").mkdir()
    (base / "outside/keep").write_text("keep")
    (r / "_layer_3/link").symlink_to(base / "outside")
    (r / "stray").write_text("x")
    return r


# ---------------------------------------------------------------- persistent stores


@case("persist-v2-valid", "persistent", "sound schema-2 store", "accept")
def _(base):
    return persistent(base)


@case("persist-v2-extra-keys", "persistent", "unknown keys at every level", "accept")
def _(base):
    def edit(d):
        d["hwctl"] = {"a": 1}
        d["layers"][0]["x"] = 1
        d["layers"][0]["files"][0]["mtime_ns"] = 1

    return persistent(base, edit=edit)


@case("persist-v2-content-changed", "persistent", "one byte of a quant file flipped, size kept", "reject")
def _(base):
    r = persistent(base)
    p = one(r)
    b = bytearray(p.read_bytes())
    b[100] ^= 1
    p.write_bytes(b)
    return r


@case("persist-v2-hash-missing", "persistent", "a file entry without sha256", "reject")
def _(base):
    def edit(d):
        del d["layers"][0]["files"][0]["sha256"]

    return persistent(base, edit=edit)


@case("persist-v2-backend-amxint8", "persistent", "schema 2 with backend AMXINT8", "reject")
def _(base):
    return persistent(base, edit=_doc(backend="AMXINT8"))


@case("persist-both-manifests", "persistent", "both manifest names present", "reject")
def _(base):
    r = persistent(base)
    dump(r / MANIFEST, remake(r))
    return r


@case("persist-schema-3", "persistent", "schema_version 3", "reject")
def _(base):
    return persistent(base, edit=_doc(schema_version=3))


@case("persist-deep-nesting", "persistent", "manifest is 100 000 nested arrays", "reject")
def _(base):
    r = persistent(base)
    dump(r / MANIFEST_V2, "[" * 100_000 + "]" * 100_000)
    return r


@case(
    "persist-leading-zero-expert",
    "persistent",
    "expert 0's gate files are named gate_00, manifest agrees",
    "reject",
    note="kt-kernel's C++ loader looks for gate_0 and fails later",
)
def _(base):
    r = persistent(base)
    doc = json.loads((r / MANIFEST_V2).read_text())
    for n in (0, 1):
        for k in ("quant", "scale"):
            p = one(r, "gate", 0, k, numa=n)
            p.rename(p.parent / p.name.replace("gate_0_", "gate_00_"))
    for f in doc["layers"][0]["files"]:
        f["path"] = f["path"].replace("gate_0_", "gate_00_")
    dump(r / MANIFEST_V2, doc)
    return r


@case("persist-group-writable-root", "persistent", "root mode 0775 (a shared store)", "accept")
def _(base):
    r = persistent(base)
    r.chmod(0o775)
    return r
