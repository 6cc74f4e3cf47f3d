"""Whether each resource, data source, block and argument of the modules is in the schema of the *current* AWS provider.

The provider cannot be had where tests run, but its official bindings for Python can: a class for each resource and block, whose
constructor has the arguments, those that are required without a default. Their text is read, nothing of it is run.
"""

import ast
import glob
import re
import zipfile

# Of Terraform itself, for any resource.
META = {"count", "for_each", "depends_on", "provider", "lifecycle", "provisioner", "connection", "timeouts"}


class Bindings:
    def __init__(self, place):
        wheels = glob.glob(str(place / "cdktf_cdktf_provider_aws-*.whl"))
        if len(wheels) != 1:
            raise SystemExit("the provider's bindings are missing: tests/lab/terraform/install schema")
        # Names that mean something in Python have an underscore at their end there.
        self.wheel, self.modules = zipfile.ZipFile(wheels[0]), {}

    def classes(self, type_name, is_data):
        """Its classes by name, with those arguments that have a type of their own; or nothing."""
        folder = ("data_aws_" if is_data else "") + type_name.removeprefix("aws_")
        if folder not in self.modules:
            try:
                text = self.wheel.read(f"cdktf_cdktf_provider_aws/{folder}/__init__.py").decode()
            except KeyError:
                self.modules[folder] = None
                return None
            self.version = re.search(r"hashicorp/aws/([\d.]+)/docs", text)[1]
            made = {}
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef):
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                            made[node.name] = {
                                {"self_attribute": "self"}.get(argument.arg, argument.arg.rstrip("_")): (default is None, ast.unparse(argument.annotation))
                                for argument, default in zip(method.args.kwonlyargs, method.args.kw_defaults)
                            }
            self.modules[folder] = made
        return self.modules[folder]


def of_block(where, block, arguments, classes, outermost):
    given = set(block.attributes) | {inner.kind for inner in block.blocks if inner.kind != "dynamic"}
    given |= {inner.labels[0] for inner in block.blocks if inner.kind == "dynamic"}
    if outermost:
        given -= META
    for name in sorted(given - set(arguments)):
        yield f"{where} has no argument {name}"
    for name, (required, _) in arguments.items():
        if required and name not in given:
            yield f"{where} lacks the required argument {name}"
    for inner in block.blocks:
        name, content = (inner.labels[0], inner.all("content")[0]) if inner.kind == "dynamic" else (inner.kind, inner)
        if name in arguments and not (outermost and name in META):
            types = [one for one in re.findall(r"\w+", arguments[name][1]) if one in classes]
            if not types:
                yield f"{where}: {name} is an argument, no block"
            else:
                yield from of_block(f"{where}.{name}", content, classes[types[0]], classes, False)


def deviations(bindings, module):
    """What of the module the current provider would refuse, as sentences."""
    for block in module.blocks:
        if block.kind == "provider" and block.labels == ["aws"]:
            classes = bindings.classes("provider", False)
            yield from of_block("provider.aws", block, next(iter(classes.values())), classes, True)
        if block.kind in ("resource", "data") and block.labels[0].startswith("aws_"):
            classes = bindings.classes(block.labels[0], block.kind == "data")
            where = ".".join(([] if block.kind == "resource" else ["data"]) + block.labels)
            if classes is None:
                yield f"{where}: there is no such {block.kind}"
                continue
            # The first class is the resource's own; besides its arguments it takes what the bindings need.
            own = next(iter(classes.values()))
            yield from of_block(where, block, {name: value for name, value in own.items() if name not in META}, classes, True)
