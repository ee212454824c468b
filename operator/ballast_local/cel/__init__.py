"""CEL, the expression language of `x-kubernetes-validations`: parser, functions, compiler to Python closures. PURE.

Existing Python libraries lack Kubernetes' own functions and optional fields, or take milliseconds per rule; ten
thousand objects with ten rules each need microseconds.
"""

from ballast_local.cel.compiler import Program, compile_expression
from ballast_local.cel.parser import CelSyntaxError
from ballast_local.cel.values import CelError

__all__ = ["CelError", "CelSyntaxError", "Program", "compile_expression"]
