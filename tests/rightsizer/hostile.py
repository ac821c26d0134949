"""Names and reasons that nobody means well: markup, formulas, commands of terminals. For tests of what is printed."""

import itertools

_ENTRANCES = (
    "",
    '">',
    "'>",
    "--><",
    "]]>",
    "</title>",
    "</style>",
    "</script>",
    "</td></table>",
    '" x="',
    "`",
)
_MARKUP = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<svg><script>alert&#40;1)</script>",
    "<iframe src=javascript:alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "<a href=data:text/html,x>x</a>",
    "<details open ontoggle=alert(1)>",
    "<style>@import 'http://evil.example/x'</style>",
    "<math><mtext></mtext><mglyph><svg><mtext><textarea><path id='</textarea><img onerror=alert(1) src>'>",
    "<base href=//evil.example/>",
    "<form action=//evil.example><button>x</button>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
)
XSS = tuple(entrance + markup for entrance, markup in itertools.product(_ENTRANCES, _MARKUP))

ATTRIBUTES = (
    'x" onmouseover="alert(1)',
    "x' onfocus='alert(1)' autofocus='",
    "x onclick=alert(1)",
    "javascript:alert(1)",
    "&#106;avascript:alert(1)",
    "{{constructor.constructor('alert(1)')()}}",
    "\x00<script>alert(1)</script>",
    "\u2028<script>",
    "\ufeff<svg onload=alert(1)>",
    "\x85<b>",
    "\U000e0001<b>",
)

FORMULAS = (
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://evil.example";"x")',
    "+1+1",
    "-2+3",
    "@SUM(1+1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
    "a,b",
    'a"b',
    "a\r\nb",
)

MARKDOWN = (
    "a|b",
    "a\\|b",
    "a`b",
    "``",
    "`a` <b>c</b> `",
    "[x](http://evil.example)",
    "![x](http://evil.example/x.png)",
    "<http://evil.example>",
    "http://evil.example",
    "www.evil.example",
    "**bold** _em_ ~~gone~~",
    "a\n\n# heading",
    "a\n| --- |",
    "[x]: http://evil.example",
    "&lt;b&gt;",
    "$x$ ^y^ ==z==",
    " leading",
    "- item",
    "1. item",
    "\\",
)

TERMINAL = (
    "\x1b[2Jgone",
    "\x1b]0;title\x07",
    "a\rb",
    "a\nb",
    "\u202eright-to-left",
    "\x9b31m",
    "\u200b\u2066x",
)

EVERYTHING = (*XSS, *ATTRIBUTES, *FORMULAS, *MARKDOWN, *TERMINAL)
