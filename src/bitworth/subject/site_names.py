"""What a site is called, where an exporter gave its weight no name of its own."""

from __future__ import annotations

import ast
import re

import onnx_ir as ir

# Names that exporters and folders make up: they change with the exporter's version or with any
# edit of the model, so no record may hang on them.
_INVENTED = re.compile(
    r"""(
        \d+                                       # numbered values of old torch exports
      | onnx::\w+_\d+                             # torch.onnx, TorchScript
      | _?val_\d+ | _?v_?\d+ | t_\d+ | tmp_\d+    # torch.onnx, dynamo
      | (const|constant|Constant|initializer|transpose|Transpose|permute)(_output)?(_\d+)*
      | .*/Constant(_\d+)?_output_\d+             # torch.onnx, TorchScript, constants
      | (auto\.cast|helper\.\w+)\.\d+            # paddle2onnx
      | (Constant|Cast|Identity|Transpose|Reshape)\.\d+(\.\d+)?
    )""",
    re.VERBOSE,
)
_SCOPES = "pkg.torch.onnx.name_scopes"


def base_id(node: ir.Node, weight: ir.Value) -> str:
    """Return the id of the site that is ``node``, before ``#2`` is added to later ones.

    The weight's name; where that is invented, the innermost module around the node and ".weight";
    where the node says none, the node's own name and ".weight".
    """
    # A folded Transpose or Cast appends its kind to the name of a weight with other users.
    name = str(weight.name)
    if not _INVENTED.fullmatch(name.split("/Transpose")[0].split("/Cast")[0]):
        return name
    module = module_of(node) or str(node.name)
    return f"{module}.weight"


def module_of(node: ir.Node) -> str | None:
    """Return the path of the innermost module around ``node``, with dots, where the export says."""
    scopes = node.metadata_props.get(_SCOPES)
    if scopes:
        try:
            names = ast.literal_eval(scopes)
        except (SyntaxError, ValueError):
            names = []
        # The last entry is the operation; those before it are the modules around it.
        modules = [str(n) for n in names[:-1] if n] if isinstance(names, list) else []
        if modules:
            return modules[-1]
    name = str(node.name)
    if name.startswith("/") and name.count("/") > 1:
        # TorchScript exports name a node by its path: /encoder/layer.0/query/MatMul.
        return name.rpartition("/")[0].strip("/").replace("/", ".")
    return None
