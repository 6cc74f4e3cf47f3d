"""A reader of Terraform's language, as far as names go: blocks, their labels and attributes, and no expressions."""

import re

TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?\*/)|(?P<heredoc><<-?(?P<tag>\w+)\n.*?\n\s*(?P=tag)\b)|(?P<string>")|(?P<newline>\n)
      |(?P<space>[ \t\r]+)|(?P<name>[A-Za-z_][\w-]*)|(?P<number>[0-9][0-9.]*)|(?P<other>==|=>|.)""",
    re.VERBOSE | re.DOTALL,
)


class Malformed(Exception):
    pass


def string_end(text, at):
    """The position after the string that begins at `at`, interpolations with strings in them included."""
    at += 1
    while text[at] != '"':
        if text[at] == "\\":
            at += 1
        elif text[at] in "$%" and text[at + 1] == "{" and text[at - 1] != text[at]:
            depth, at = 1, at + 2
            while depth:
                if text[at] == '"':
                    at = string_end(text, at)
                    continue
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            continue
        at += 1
    return at + 1


def tokens(text):
    at = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        kind, value, at = found.lastgroup, found.group(), found.end()
        if found.group("heredoc"):
            kind = "heredoc"
        if kind == "string":
            end = string_end(text, found.start())
            value, at = text[found.start() : end], end
        if kind not in ("comment", "space"):
            yield kind, value
    yield "end", ""


class Block:
    """`kind "label" … { body }`; `attributes` maps names to their expressions as written, without what spaces them."""

    def __init__(self, kind, labels):
        self.kind, self.labels, self.attributes, self.blocks = kind, labels, {}, []

    def all(self, kind):
        return [block for block in self.blocks if block.kind == kind]


def parse(text):
    found = list(tokens(text))
    position = 0

    def body(block, end):
        nonlocal position
        while True:
            kind, value = found[position]
            position += 1
            if kind == "newline":
                continue
            if (kind, value) == end:
                return block
            if kind != "name":
                raise Malformed(f"{value!r} is no beginning of an argument or block")
            name, labels = value, []
            while found[position][0] in ("string", "name"):
                labels.append(found[position][1].strip('"'))
                position += 1
            kind, value = found[position]
            position += 1
            if value == "=" and not labels:
                block.attributes[name] = expression()
            elif value == "{":
                block.blocks.append(body(Block(name, labels), ("other", "}")))
            else:
                raise Malformed(f"{value!r} after {name}")

    def expression():
        nonlocal position
        depth, words = 0, []
        while True:
            kind, value = found[position]
            if depth == 0 and (kind in ("newline", "end") or value == "}"):
                return " ".join(words)
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(value, 0) if kind == "other" else 0
            if kind != "newline":
                words.append(value)
            position += 1

    return body(Block("file", []), ("end", ""))


def module(directory):
    """All files of a module as one block."""
    whole = Block("module", [str(directory)])
    for path in sorted(directory.glob("*.tf")):
        try:
            read = parse(path.read_text())
        except (Malformed, IndexError) as error:
            raise Malformed(f"{path}: {error}") from None
        whole.blocks += read.blocks
    return whole
