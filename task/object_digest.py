"""A digest of a Python object that is the same in every process that makes the object in the same way.

A pickle is not: it has line numbers, random identities of classes, and sets in any order. Here code counts by
what it does (byte code, constants, and the values of the globals and closures that it reads), data by their
bytes, classes by their members, and other objects by what they would be pickled as. What can be imported
counts by its name, and by the files of its package if that is not installed (`task.references.code_of`). Byte
code depends on the version of Python, so a digest does, too.
"""

import copyreg
import dis
import functools
import hashlib
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from task.references import code_of, is_installed

# Attributes of a class that say where its code stands, or that Python adds to every class.
_NOT_COUNTED = (
    "__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__",
    "_abc_impl", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__",
)  # fmt: skip
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)


def digest(value: Any) -> str:
    """Return the SHA-256 of an object, 64 hex digits.

    Raises:
        Exception: Whatever the object raises that cannot be pickled, mostly TypeError.
    """
    walk = _Walk()
    walk.feed(value)
    return walk.hexdigest()


def importable(value: Any) -> str:
    """Return ``module:name`` if another process could import it so, else ""."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    home = sys.modules.get(module) if isinstance(module, str) else None
    if home is None or module == "__main__" or getattr(home, "__spec__", None) is None:
        return ""
    if not isinstance(name, str) or not isinstance(value, type | FunctionType | BuiltinFunctionType):
        return ""
    found: Any = home
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else ""


class _Walk:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no other object gets the identity of one of them

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _say(self, *words: object) -> None:
        self._hash.update(("\0".join(map(str, words)) + "\n").encode("utf-8", "surrogatepass"))

    def feed(self, value: Any) -> None:
        """Add an object to the digest."""
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self._say(type(value).__name__, repr(value))
        elif type(value) is tuple:
            self._say("tuple", len(value))
            for part in value:
                self.feed(part)
        elif type(value) in (set, frozenset):
            self._say(type(value).__name__, *sorted(digest(part) for part in value))
        elif isinstance(value, CodeType):
            self._code(value)
        elif isinstance(value, ModuleType):
            self._name(value.__name__, "")
        elif name := importable(value):
            self._name(*name.split(":"))
        elif isinstance(value, type) and not value.__flags__ & _MADE_BY_PYTHON:
            self._say("builtin", value.__module__, value.__qualname__)
        elif (number := self._seen.get(id(value))) is not None:
            self._say("again", number)
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._mutable(value)

    def _mutable(self, value: Any) -> None:
        """Add what may hold itself."""
        torch = sys.modules.get("torch")
        if type(value) in (list, dict):
            self._say(type(value).__name__, len(value))
            for part in value.items() if isinstance(value, dict) else value:
                self.feed(part)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._array(value)
        elif torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            self._say("tensor", type(value).__name__, value.dtype, list(value.shape), value.requires_grad)
            flat = value.detach().cpu().contiguous().reshape(-1)
            self._array((flat.resolve_conj().resolve_neg()).view(torch.uint8).numpy())
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self._say("method", value.__func__.__name__)
            self.feed(value.__self__)
        elif isinstance(value, property):
            self.feed(("property", value.fget, value.fset, value.fdel))
        elif isinstance(value, staticmethod | classmethod):
            self.feed((type(value).__name__, value.__func__))
        elif isinstance(value, functools.cached_property):
            self.feed(("cached_property", value.func))
        elif isinstance(value, type):
            self._class(value)
        else:
            reduce = copyreg.dispatch_table.get(type(value))
            made = reduce(value) if reduce else value.__reduce_ex__(4)
            self._alive.append(made)
            parts = made if isinstance(made, tuple) else (made,)
            self._say("object", type(value).__module__, type(value).__qualname__, len(parts))
            for part in parts[:3]:
                self.feed(part)
            for items in parts[3:5]:  # iterators
                self.feed(None if items is None else list(items))

    def _name(self, module: str, name: str) -> None:
        package = module.partition(".")[0]
        own = {} if is_installed(package) else code_of([f"{module}:{name}"])
        self._say("import", module, name, *own.values())

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        self._say("array", value.dtype.str, list(value.shape))
        self._hash.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _code(self, code: CodeType) -> None:
        self._say("code", code.co_name, code.co_code.hex(), code.co_flags)
        self._say(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self.feed((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_consts))

    def _function(self, function: FunctionType) -> None:
        self.feed((function.__code__, function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.feed(cell.cell_contents)
            except ValueError:  # not yet filled
                self._say("empty")
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                self._say("global", name)
                self.feed(function.__globals__[name])
        if function.__dict__:
            self.feed(function.__dict__)

    def _class(self, cls: type) -> None:
        self._say("class", cls.__qualname__)
        self.feed(cls.__bases__)
        for name, member in sorted(vars(cls).items()):
            if name not in _NOT_COUNTED and type(member).__name__ not in (
                "member_descriptor", "getset_descriptor"
            ):  # fmt: skip
                self._say("member", name)
                self.feed(member)


def _globals_of(code: CodeType) -> set[str]:
    """Return the global names that code and the code in it read."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found |= _globals_of(part)
    return found
