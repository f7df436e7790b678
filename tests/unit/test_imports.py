"""The house: cli -> core -> stores -> weights -> fs, errors below all; no circles; heavy imports inside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import hwctl

PACKAGE = Path(hwctl.__file__).parent
ROOMS = ("errors", "fs", "weights", "stores", "core", "cli", "__main__")
FAMILIES = ("hostweights", "ktint8", "pageweights")
HEAVY = {"torch", "numpy", "safetensors", "rich", "orjson"}
TERMINAL = {"typer", "rich", "click"}


@dataclass(frozen=True)
class Import:
    importer: str
    target: str
    top_level: bool
    line: int


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _statements(node: ast.AST, top_level: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it is executed when the module is imported."""
    for child in ast.iter_child_nodes(node):
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, top_level
        yield from _statements(child, top_level and not later and not _is_type_checking(child))


def imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    for node, top in _statements(ast.parse(path.read_text()), True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, top, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield Import(name, inner if inner in known else node.module, top, node.lineno)


@pytest.fixture(scope="module")
def all_imports() -> list[Import]:
    known = modules()
    return [found for name, path in known.items() for found in imports_of(name, path, known)]


def room(module: str) -> int | None:
    """The rank of a module's room; None for the package itself and for strangers."""
    parts = module.split(".")
    return ROOMS.index(parts[1]) if parts[0] == "hwctl" and len(parts) > 1 else None


def test_every_module_lies_in_a_room() -> None:
    for name in modules():
        assert name == "hwctl" or name.split(".")[1] in ROOMS, name
        assert name.split(".")[-1] not in ("utils", "helpers", "common", "misc"), name


def test_imports_go_one_way(all_imports: list[Import]) -> None:
    for found in all_imports:
        here, there = room(found.importer), room(found.target)
        if here is not None and there is not None:
            assert there <= here, found


def test_families_do_not_know_each_other(all_imports: list[Import]) -> None:
    for found in all_imports:
        here, there = found.importer.split("."), found.target.split(".")
        if there[:2] != ["hwctl", "stores"] or len(there) < 3 or here[:2] != ["hwctl", "stores"]:
            continue
        inside = here[2] if len(here) > 2 else ""
        if inside in FAMILIES:
            assert there[2] in (inside, "base", "note"), found
        elif there[2] in FAMILIES:
            assert inside in ("locate", "misnamed"), found


def test_no_module_reaches_itself(all_imports: list[Import]) -> None:
    graph: dict[str, set[str]] = {}
    for found in all_imports:
        if found.top_level and found.target.startswith("hwctl") and found.target != "hwctl":
            graph.setdefault(found.importer, set()).add(found.target)
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_heavy_libraries_are_imported_inside_functions(all_imports: list[Import]) -> None:
    for found in all_imports:
        if found.target.split(".")[0] in HEAVY:
            assert not found.top_level, found


def test_only_cli_knows_the_terminal(all_imports: list[Import]) -> None:
    for found in all_imports:
        if found.target.split(".")[0] in TERMINAL:
            assert found.importer.startswith("hwctl.cli."), found


def test_only_cli_reads_environment_and_arguments() -> None:
    """``sys.exit`` and ``sys.argv`` belong to the entry and to cli, the environment to one module of cli."""
    for name, path in modules().items():
        if name == "hwctl.__main__" or name.startswith("hwctl.cli."):
            continue
        for node, _ in _statements(ast.parse(path.read_text()), True):
            words = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            banned = ("os.environ", "os.getenv", "sys.argv", "sys.exit", "sys.stdout", "sys.stderr")
            assert words not in banned, f"{path}:{node.lineno}: {words}"  # type: ignore[attr-defined]
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("print", "input"), f"{path}:{node.lineno}"  # type: ignore[attr-defined]


def test_files_are_short() -> None:
    for path in modules().values():
        assert len(path.read_text().splitlines()) <= 400, path
