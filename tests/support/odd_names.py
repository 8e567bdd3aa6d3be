"""Names of folders in which clients of stores may see something else than what stands there."""

ODD_NAMES = [
    "a b",
    "a%20b",
    "a%2Fb",
    "%",
    "50%",
    "%25",
    "+",
    "ü",
    "日本",
    "a~b*c",
    "a=b&c",
    "a{b}[c]",
    "it's",
    "a;b@c,d",
]
