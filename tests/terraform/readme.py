"""READMEs of Terraform modules, made of what the modules say: their first comment, example, variables, outputs and resources."""

import re

import hcl


def path(directory):
    return directory / "README.md"


def unquoted(expression):
    """A string as written, without its quotation marks."""
    return re.sub(r'\\(.)', r"\1", expression[1:-1]) if expression.startswith('"') else expression


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def introduction(directory):
    """The comment that main.tf begins with."""
    lines = []
    for line in (directory / "main.tf").read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return "\n".join(lines)


def text(repository, relative):
    directory = repository / relative
    blocks = hcl.module(directory).blocks
    out = [f"# {relative}", "", introduction(directory), "", "<!-- Written by tests/terraform/check --write. -->", ""]
    example = directory / "example" / "main.tf"
    if example.exists():
        out += ["```hcl", example.read_text().replace('"../"', f'"git::https://REPOSITORY//{relative}"').rstrip(), "```", ""]
    variables = sorted((one for one in blocks if one.kind == "variable"), key=lambda one: ("default" in one.attributes, one.labels))
    if variables:
        out += ["| variable | type | default | |", "|---|---|---|---|"]
        for one in variables:
            kind, default = one.attributes["type"], one.attributes.get("default")
            kind = re.sub(r" ?([()\[\]{},]) ?", lambda found: {",": ", ", "{": "{ ", "}": " }"}.get(found[1], found[1]), kind)
            shown = "**required**" if default is None else f"`{default.replace('{ }', '{}')}`"
            out.append(f"| `{one.labels[0]}` | `{cell(kind)}` | {shown} | {cell(unquoted(one.attributes['description']))} |")
        out.append("")
    outputs = sorted((one for one in blocks if one.kind == "output"), key=lambda one: one.labels)
    if outputs:
        out += ["| output | |", "|---|---|"]
        out += [f"| `{one.labels[0]}` | {cell(unquoted(one.attributes['description']))} |" for one in outputs] + [""]
    made = sorted({one.labels[0] for one in blocks if one.kind == "resource"})
    used = sorted({one.labels[0] for one in blocks if one.kind == "module"})
    if made:
        out += ["Makes " + ", ".join(f"`{one}`" for one in made) + ".", ""]
    if used:
        out += ["Uses the modules " + ", ".join(f"`{one}`" for one in used) + ".", ""]
    return "\n".join(out).rstrip() + "\n"
