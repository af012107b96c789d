"""Hostile model output for terminals. Each payload starts and ends with visible text."""

from __future__ import annotations

ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"

_CSI = (
    "2J", "H", "31m", "0m", "38;5;196m", "38;2;1;2;3m", "?1049h", "?25l", "?1000h", "?1006h", "?2004h", "6n", "c", ">c",
    "=c", "21t", "20t", "11t", "3;0;0t", "8;1;1t", "5i", "4i", "s", "u", "1A", "99D", "K", "1K", "2K", "1;1H", "10;10r",
    "!p", "?5h", "?3h", "1 q", "4h", "20h", "1;31;40m", "58:2::1:2:3m", "?69h", "'z", "$p", "?1$p", "0\"q", "3J",
    "?996n", ">0q", "?u", "=1;1u",
)  # fmt: skip
_OSC = (
    "0;title", "1;icon", "2;title", "4;1;rgb:00/00/00", "4;1;?", "7;file:///etc", "8;;http://evil.example/",
    "8;id=1;x:",
        "9;notify", "9;4;1;50", "10;?", "11;#000000", "12;red", "52;c;cm0gLXJmIH4=", "52;p;?", "104", "112", "133;A",
    "633;E;ls", "777;notify;a;b", "1337;File=name=YQ==;inline=1:AAAA", "1337;SetUserVar=a=Yg==", "50;#1", "110;x", "l",
    "Ltitle",
)  # fmt: skip
_OTHER_STRINGS = (
    "P0;1|17/ab",
    "P+q544e",
    "P$qm",
    "Pq#0;2;0;0;0#0~~",
    "_Gf=24;AAAA",
    "^private",
    "Xstart",
    "P1000p%begin",
)
_SHORT = (
    "c",
    "7",
    "8",
    "=",
    ">",
    "D",
    "E",
    "H",
    "M",
    "N",
    "O",
    "Z",
    "(0",
    ")B",
    "*A",
    "#8",
    "%G",
    " F",
    "n",
    "o",
    "|",
    "}",
    "~",
    "l",
    "m",
)


def payloads() -> dict[str, list[str]]:
    """Name → the pieces in which the model says it."""
    made: dict[str, list[str]] = {}
    for number, body in enumerate(_CSI):
        made[f"csi-{number}"] = [f"begin {ESC}[{body}end"]
    for number, body in enumerate(_OSC):
        made[f"osc-bel-{number}"] = [f"begin {ESC}]{body}{BEL}end"]
        made[f"osc-st-{number}"] = [f"begin {ESC}]{body}{ST}end"]
    for number, body in enumerate(_OTHER_STRINGS):
        made[f"string-{number}"] = [f"begin {ESC}{body}{ST}end"]
    for number, body in enumerate(_SHORT):
        made[f"short-{number}"] = [f"begin {ESC}{body} end"]
    for code in range(0x20):
        if chr(code) not in "\n\t\x1b":
            made[f"c0-{code:02x}"] = [f"begin {chr(code)}end"]
    for code in range(0x7F, 0xA0):
        made[f"c1-{code:02x}"] = [f"begin {chr(code)}[31mx end"]
    for name, character in {"lre": "\u202a", "rle": "\u202b", "pdf": "\u202c", "lro": "\u202d", "rlo": "\u202e",
                            "lri": "\u2066", "rli": "\u2067", "fsi": "\u2068", "pdi": "\u2069"}.items():  # fmt: skip
        made[f"bidi-{name}"] = [f"begin {character}dlrow end"]
    made.update(_tricks())
    made.update(_in_pieces())
    return made


def combine_payloads() -> list[str]:
    """All that can be sent, as one answer, each on lines of its own. JSON libraries refuse half a pair."""
    return [piece for name, one in payloads().items() if name != "half-a-pair" for piece in (*one, "\n")]


def _tricks() -> dict[str, list[str]]:
    return {
        "overwrite-by-return": ["begin harmless\rrm -rf ~ end"],
        "overwrite-by-backspace": [f"begin safe{chr(8) * 4}evil end"],
        "overwrite-by-delete": [f"begin safe{chr(127) * 4}evil end"],
        "returns-and-newlines": ["begin a\r\nb\n\rc\r\r\nend"],
        "hidden-link": [f"begin {ESC}]8;;https://evil.example{ST}bank{ESC}]8;;{ST} end"],
        "nested-in-osc": [f"begin {ESC}]0;a{ESC}[31mb{BEL}end"],
        "osc-in-osc": [f"begin {ESC}]0;a{ESC}]52;c;eA=={BEL}{BEL}end"],
        "dcs-in-csi": [f"begin {ESC}[1{ESC}P0;1|x{ST}end"],
        "escape-in-escape": [f"begin {ESC}{ESC}{ESC}[31mend"],
        "sequence-made-by-removal": [f"begin {ESC}{ESC}[0m[31mend"],
        "sequence-made-by-removing-c1": [f"begin {ESC}\x80[31m{ESC}\x07[2Jend"],
        "nul-inside": [f"begin {ESC}\0[\x0031mend"],
        "cancelled": [f"begin {ESC}[3\x18end", f"{ESC}]0;x\x1aend"],
        "unfinished-csi": [f"begin end{ESC}[31"],
        "unfinished-osc": [f"begin {ESC}]0;title end"],
        "unfinished-osc-by-c1": ["begin \x9d0;title end"],
        "unfinished-escape": [f"begin end{ESC}"],
        "unfinished-dcs": [f"begin {ESC}P0;1| end"],
        "osc-over-lines": [f"begin {ESC}]0;a\nb\nend"],
        "long-csi": [f"begin {ESC}[{'1;' * 5000}mend"],
        "long-osc": [f"begin {ESC}]52;c;{'QUJD' * 5000}{BEL}end"],
        "endless-osc": [f"begin {ESC}]0;{'x' * 20000} end"],
        "long-intermediates": [f"begin {ESC}{' ' * 2000}end"],
        "csi-by-c1": ["begin \x9b31mend"],
        "osc-by-c1": ["begin \x9d0;title\x9cend"],
        "dcs-by-c1": ["begin \x900;1|x\x9cend"],
        "c1-ended-by-escape": [f"begin \x9d0;title{ST}end"],
        "osc-ended-by-c1": [f"begin {ESC}]0;title\x9cend"],
        "half-a-pair": ["begin \ud89b\udc9b end"],
        "wide-and-controls": [f"begin 漢{ESC}[2J字😀{BEL} end"],
        "combining": [f"begin e\u0301{ESC}[31m\u0301 end"],
        "forged-prompt": [f"begin {ESC}[2K\r$ sudo rm -rf / end"],
        "forged-error": [f"begin {ESC}[31merror: pay here{ESC}[0m end"],
    }


def _in_pieces() -> dict[str, list[str]]:
    """Cut a payload at every place, since harmless pieces can form a harmful whole."""
    whole = {
        "csi": f"begin {ESC}[31mend",
        "osc": f"begin {ESC}]52;c;eA=={BEL}end",
        "osc-st": f"begin {ESC}]0;t{ST}end",
        "dcs": f"begin {ESC}Pq~{ST}end",
        "c1": "begin \x9b2Jend",
        "return": "begin a\rb\r\nend",
    }
    made = {f"each-{name}": list(text) for name, text in whole.items()}
    for name, text in whole.items():
        made[f"half-{name}"] = [text[: len(text) // 2], text[len(text) // 2 :]]
        made[f"escape-alone-{name}"] = [text[:6], text[6:7], text[7:]]
    return made
