"""Fills in, while a package is built, what depends on where the project is published: URLs, and README's links.

REPOSITORY_URL names that place, such as https://github.com/OWNER/NAME; the release workflow sets it. Without it, as in
a checkout, there are no URLs, and links stay relative.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)([^)\s]+)\)")
_LINK = re.compile(r"((?<!!)\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\()(?!https?:|#)([^)\s]+)\)")


def with_absolute_links(text: str, repository: str, ref: str) -> str:
    """Markdown whose links lead to files of the repository, as PyPI needs them."""
    pictures = _PICTURE.sub(rf"\1{repository}/raw/{ref}/\2)", text)
    return _LINK.sub(rf"\1{repository}/blob/{ref}/\2)", pictures)


class PublishedMetadata(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill them in."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        if repository:
            ref = f"v{metadata['version']}"
            text = with_absolute_links(text, repository, ref)
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/{ref}/docs/README.md",
                "Changelog": f"{repository}/blob/{ref}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
