"""CodeFlare's AppWrapper. Pure.

https://project-codeflare.github.io/appwrapper/
"""

from rightsizer.kinds.core import CLASS, TEMPLATE_CLASS
from rightsizer.kinds.edits import ITEM
from rightsizer.kinds.kind import Kind, suspended

KINDS = (
    # What it wraps is deleted, and made anew when it is resumed. That may be of any kind, and its class stand anywhere.
    Kind(
        "workload.codeflare.dev",
        "AppWrapper",
        source="workload.codeflare.dev/v1beta2",
        lost="everything not stored outside of its objects, which are deleted and created again",
        stop=suspended(),
        classes=tuple(
            ("spec", "components", ITEM, "template", *path) for path in (("spec", CLASS), TEMPLATE_CLASS)
        ),
    ),
)
