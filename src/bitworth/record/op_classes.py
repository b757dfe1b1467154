"""What kind of work a layer does, from the name that its engine gives the operator."""

from __future__ import annotations

from collections.abc import Sequence

PRODUCT = "GEMM and conv"
ATTENTION = "attention"
NORMALIZATION = "normalization"
POINTWISE = "pointwise"
REDUCTION = "pooling and reduction"
MOVEMENT = "data movement"
CONVERSION = "quantize, dequantize, reformat"
OTHER = "other"

#: In the order of tables and pictures.
CLASSES = (
    PRODUCT, ATTENTION, NORMALIZATION, POINTWISE, REDUCTION, MOVEMENT, CONVERSION, OTHER,
)  # fmt: skip

#: Operators of ONNX, of onnxruntime's own domains and of OpenVINO's CPU plugin, lower case.
_OPS: dict[str, tuple[str, ...]] = {
    PRODUCT: (
        "conv", "fusedconv", "nhwcfusedconv", "qlinearconv", "convinteger", "convtranspose",
        "convolution", "deconvolution", "deformconv", "gemm", "fusedgemm", "qgemm", "matmul",
        "fusedmatmul", "qlinearmatmul", "matmulinteger", "matmulintegertofloat",
        "dynamicquantizematmul", "matmulnbits", "fullyconnected", "einsum", "lstm", "gru", "rnn",
        "rnnseq", "rnncell", "lstmsequence", "grusequence",
        "groupconvolution", "convolutionbackpropdata", "groupconvolutionbackpropdata",
        "deformableconvolution", "fullyconnectedcompressed",
    ),
    ATTENTION: (
        "attention", "qattention", "multiheadattention", "groupqueryattention",
        "decodermaskedmultiheadattention", "mha", "scaleddotproductattention",
        "scaleddotproductattentionwithkvcache", "pagedattention", "rotaryembedding", "rope",
    ),
    NORMALIZATION: (
        "layernormalization", "skiplayernormalization", "simplifiedlayernormalization",
        "skipsimplifiedlayernormalization", "embedlayernormalization", "rmsnormalization",
        "rmsnorm", "batchnormalization", "instancenormalization", "groupnormalization",
        "groupnorm", "lpnormalization", "lrn", "mvn", "normalizel2", "softmax", "logsoftmax",
    ),
    POINTWISE: (
        "add", "sub", "mul", "div", "qlinearadd", "qlinearmul", "relu", "leakyrelu", "prelu",
        "clip", "elu", "selu", "sigmoid", "qlinearsigmoid", "qlinearleakyrelu", "hardsigmoid",
        "hardswish", "swish", "mish", "softplus", "softsign", "tanh", "erf", "gelu", "biasgelu",
        "fastgelu", "quickgelu", "exp", "log", "pow", "sqrt", "reciprocal", "neg", "abs", "sign",
        "floor", "ceil", "round", "sin", "cos", "min", "max", "mean", "sum", "where", "select",
        "equal", "greater", "less", "greaterorequal", "lessorequal", "and", "or", "not", "mod",
        "isnan", "eltwise", "math", "subgraph", "biassplitgelu", "biasadd", "scale",
        "multiply", "divide", "subtract", "maximum", "minimum", "power", "powerstatic", "muladd",
        "squareddifference", "logicaland", "logicalor", "logicalnot", "hswish", "hsigmoid",
        "softrelu", "prelu", "notequal",
    ),
    REDUCTION: (
        "maxpool", "averagepool", "globalaveragepool", "globalmaxpool", "lppool", "pooling",
        "qlinearaveragepool", "qlinearglobalaveragepool", "adaptivepooling", "reduce",
        "reducemean", "reducesum", "reducemax", "reducemin", "reduceprod", "reducel2",
        "reducelogsumexp", "argmax", "argmin", "topk", "cumsum",
        "avgpool", "adaptiveavgpool", "adaptivemaxpool",
    ),
    MOVEMENT: (
        "reshape", "transpose", "squeeze", "unsqueeze", "flatten", "identity", "concat",
        "qlinearconcat", "concatenation", "split", "slice", "stridedslice", "gather", "gathernd",
        "gatherelements", "scatternd", "scatterelements", "scatterupdate", "pad", "resize",
        "upsample", "interpolate", "expand", "tile", "broadcast", "depthtospace", "spacetodepth",
        "shape", "shapeof", "constantofshape", "range", "memcpyfromhost", "memcpytohost", "copy",
        "onehot", "nonzero", "memoryinput", "memoryoutput", "embedding", "gatherblockquantized",
        "input", "output", "parameter", "result",
        "variadicsplit", "roll", "reverse", "shufflechannels", "spacetobatch", "batchtospace",
    ),
    CONVERSION: (
        "quantizelinear", "dequantizelinear", "dynamicquantizelinear", "fakequantize", "quantize",
        "cast", "convert", "reorder", "reorderinput", "reorderoutput", "reformat",
    ),
}  # fmt: skip
_CLASS_OF = {op: name for name, ops in _OPS.items() for op in ops}

_ATTENTION_SITE = "@matmul:"


def op_class(op: str, sites: Sequence[str] = ()) -> str:
    """The class of a layer.

    Args:
        op: operator in the engine's words.
        sites: ids of the sites that it computes; products of two activations are attention's.
    """
    if sites:
        inside = all(site.startswith(_ATTENTION_SITE) for site in sites)
        return ATTENTION if inside else PRODUCT
    return _CLASS_OF.get(op.lower(), OTHER)
