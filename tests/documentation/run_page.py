"""Runs the code of pages: `python -m tests.documentation.run_page URL PAGE…`, in a directory of its own.

The Python of a page shares its names, as one program. What it takes for granted, such as `handle`, is in `stand_ins/`.
Coroutine functions without arguments that no code of the page calls are run at the end of their block, all at once.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.documentation.blocks import Block, blocks, stand_in
from tests.processes import free_port

PATIENCE = 240  # seconds
LOCAL_SERVER = "redis://127.0.0.1:6379/0"
LOCAL_WEB = "8000"  # the port of a page's web application


def execute(code: str, where: str, names: dict[str, Any]) -> None:
    """Execute code in which `await` may stand at the top."""
    compiled = compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(asyncio.wait_for(eval(compiled, names), PATIENCE))
    else:
        exec(compiled, names)


def entries(code: str, whole: str, names: dict[str, Any]) -> list[Any]:
    """Return the coroutine functions of a block that nobody calls and that need nothing."""
    return [
        names[node.name]
        for node in ast.parse(code).body
        if isinstance(node, ast.AsyncFunctionDef)
        and not any((node.args.args, node.args.posonlyargs, node.decorator_list))
        and not any(isinstance(inner, ast.Yield) for inner in ast.walk(node))
        and len(re.findall(rf"\b{node.name}\b", whole)) == 1
    ]


async def together(functions: list[Any]) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for function in functions:
            group.create_task(function())


def here(code: str, url: str, port: int) -> str:
    """Return code for the server and the free port of this test."""
    return re.sub(
        rf"(127\.0\.0\.1:|127\.0\.0\.1', |--port ){LOCAL_WEB}\b", rf"\g<1>{port}", code.replace(LOCAL_SERVER, url)
    )


def run(block: Block, where: str, whole: str, names: dict[str, Any], url: str, port: int) -> None:
    code = here(block.code, url, port)
    if block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(code)
    elif block.language in ("python", "py"):
        execute(code, where, names)
        if ready := entries(code, whole, names):
            asyncio.run(together(ready))
    elif not block.is_checked:
        script = here("\n".join(block.commands), url, port)
        subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True, timeout=PATIENCE)


def main(page: Path, url: str) -> None:
    names: dict[str, Any] = {"__name__": "page", "URL": url}
    module = stand_in(page)
    prepare = import_module(module).prepare if find_spec(module) else None
    found = [block for block in blocks(page) if block.runs]
    port = free_port()
    whole = "\n".join(re.sub(r"#.*", "", block.code) for block in found if not block.title)
    for block in found:
        where = f"{page.name}:{block.line}"
        print(f"-- {where}", flush=True)
        if prepare and not block.title:
            names.update(asyncio.run(prepare(url, block.code)))
        run(block, where, whole, names, url, port)


if __name__ == "__main__":
    for each in sys.argv[2:]:
        main(Path(each), sys.argv[1])
