"""Imports an installed package and all of its modules: `python import_wheel.py NAME`.

Modules may lack what an extra of the package would bring, and nothing else.
"""

import importlib
import pkgutil
import sys
from importlib.metadata import requires


def main(name: str) -> None:
    package = importlib.import_module(name)
    print(name, package.__version__, package.__file__)
    assert "site-packages" in package.__file__, "not from a wheel"
    optional = [requirement for requirement in requires(name) if "extra ==" in requirement]
    modules = [found.name for found in pkgutil.walk_packages(package.__path__, f"{name}.")]
    for module in modules:
        if module.endswith("__main__"):
            continue
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            if not any(requirement.startswith(missing.name.replace("_", "-")) for requirement in optional):
                raise
            print(f"{module} needs {missing.name}")
    print(f"{len(modules)} modules of {name} import")


if __name__ == "__main__":
    main(sys.argv[1])
