"""Copies the pages that an archive carries into one folder: pages.py ROOT FOLDER.

A link to another page of the archive leads to it. Any other keeps its words and loses its target, which is named
behind them as a file of the source.
"""

import os
import pathlib
import re
import sys

# Name in the archive's folder of pages, for each page that is packed.
PAGES = {
    "docs/owner.md": "owner.md",
    "docs/commands.md": "commands.md",
    "docs/api.md": "api.md",
    "docs/security.md": "security.md",
    "docs/design/lessons.md": "lessons.md",
    "THREAT_MODEL.md": "THREAT_MODEL.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "deploy/INSTALL.md": "INSTALL.md",
    "state/README.md": "state.md",
    "nano/MODEL_CARD.md": "MODEL_CARD.md",
    "nano/EMBED_CARD.md": "EMBED_CARD.md",
    "nano/PRM_CARD.md": "PRM_CARD.md",
    "nano/ATTRIBUTION.md": "ATTRIBUTION.md",
}
# What lies elsewhere in the archive, seen from that folder.
OTHERS = {
    "deploy/grafana.json": "grafana.json",
    "systemd/config.toml": "../../chimere/systemd/config.toml",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def mended(page: str, text: str) -> str:
    """The text of `page` with links that lead somewhere in the archive."""

    def link(found: re.Match) -> str:
        picture, words, target = found.groups()
        path, mark, anchor = target.partition("#")
        if "://" in target or not path:
            return found[0]
        source = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if to := {**PAGES, **OTHERS}.get(source):
            return f"{picture}[{words}]({to}{mark}{anchor})"
        name = f"`{source}` of the source"
        return f"({words}: {name})" if picture else words if source in words else f"{words} ({name})"

    return LINK.sub(link, text)


def main() -> None:
    root, folder = map(pathlib.Path, sys.argv[1:])
    for page, name in PAGES.items():
        (folder / name).write_text(mended(page, (root / page).read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
