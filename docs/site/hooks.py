# SPDX-License-Identifier: MIT OR Apache-2.0
"""MkDocs' hooks: pages in the order of docs/README.md, links that hold on the site as they do in the repository.

Markdown files outside docs/ are taken in under ``repository/``; a link to any other file leads to the repository's
page.
"""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = ("capture", "fuzz", "linux", "nova")
"""Folders whose Markdown files are taken in, beside those of the repository's root."""
MADE = {".venv", "build"}
"""Folders that tests and builds make in there: what they hold is of others, and may be all of a kernel's sources."""

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
HEAD = re.compile(r"\A(\s*<!--.*?-->)+", re.DOTALL)
"""Comments before the title, which keep MkDocs from finding it."""

FENCE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>~?")
URL = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["repository"]


@cache
def outside() -> list[PurePosixPath]:
    """Markdown files outside docs/, relative to the repository."""
    found = list(ROOT.glob("*.md"))
    for folder in OUTSIDE:
        for path, folders, files in os.walk(ROOT / folder):
            folders[:] = set(folders) - MADE
            found += [Path(path, name) for name in files if name.endswith(".md")]
    return sorted(PurePosixPath(path.relative_to(ROOT)) for path in found)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation: the pages as docs/README.md links them, then what was taken in."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages: list[Any] = ["README.md"]
    for target in dict.fromkeys(match[2] for match in LINK.finditer(text)):
        path = ROOT / "docs" / target
        if path.is_dir():
            inner = sorted(entry.relative_to(ROOT / "docs").as_posix() for entry in path.glob("*.md"))
            pages.append({_title(path): sorted(inner, key=lambda name: not name.endswith("README.md"))})
        elif path.suffix == ".md" and path.is_relative_to(ROOT / "docs") and ".." not in target:
            pages.append(target)
    pages.append({"In the repository": [{str(path): f"repository/{path}"} for path in outside()]})
    config.nav = pages
    return config


def _title(folder: Path) -> str:
    return {"adr": "Decisions", "reference": "Keys of files"}.get(folder.name, folder.name)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Takes the Markdown files outside docs/ in."""
    for path in outside():
        content = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"repository/{path}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrites the links of a page."""
    here = PurePosixPath(page.file.src_uri)
    source = here.relative_to("repository") if here.parts[0] == "repository" else PurePosixPath("docs") / here
    parts = FENCE.split(HEAD.sub("", markdown))
    return "".join(part if number % 2 else _relinked(part, here, source) for number, part in enumerate(parts))


def on_page_content(html: str, **_: Any) -> str:
    """Takes the roles out of docstrings (``:func:`run```), which mkdocstrings leaves as they are."""
    return ROLE.sub("<code>", html).replace("<p>::</p>\n", "")


def _relinked(text: str, here: PurePosixPath, source: PurePosixPath) -> str:
    def link(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        return match[1] + _where(PurePosixPath(os.path.normpath(source.parent / target)), here) + match[3]

    return LINK.sub(link, text)


def _where(target: PurePosixPath, here: PurePosixPath) -> str:
    """What leads from the page ``here`` to the file ``target`` of the repository."""
    path = ROOT / target
    if path.is_dir():
        pages = sorted(path.glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
        if pages and (target.parts[:1] == ("docs",) or PurePosixPath(pages[0].relative_to(ROOT)) in outside()):
            target = PurePosixPath(pages[0].relative_to(ROOT))
    if target.parts[:1] == ("docs",) and target.suffix == ".md":
        return os.path.relpath(target.relative_to("docs"), here.parent)
    if target in outside():
        return os.path.relpath(PurePosixPath("repository") / target, here.parent)
    if not path.exists():
        return f"there-is-no/{target}"  # MkDocs warns of it, and a strict build fails
    return f"{URL}/{'tree' if path.is_dir() else 'blob'}/main/{target}"
