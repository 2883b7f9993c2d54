"""Reads Transformer Engine's headers with libclang into plain Python values."""

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import CursorKind, Index, TypeKind

# Headers that no C function of ours comes from: the first is C++ and includes a file that the wheel does not ship.
LEFT_OUT = {"comm_gemm_overlap.h"}

# What Transformer Engine takes from CUDA and NCCL in its C prototypes is three opaque pointers, so that the reading
# needs neither: these files stand in for theirs.
STAND_INS = {
    "cuda_runtime_api.h": "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n",
    "cuda_runtime.h": '#include "cuda_runtime_api.h"\n',
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
    "nccl.h": "typedef struct ncclComm *ncclComm_t;\n",
}


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str  # as in the header, without a const of the parameter itself


@dataclass(frozen=True)
class Function:
    name: str  # with the prefix nvte_
    result: str
    parameters: tuple
    header: str

    @property
    def stem(self):
        return self.name.removeprefix("nvte_")


@dataclass(frozen=True)
class Enumeration:
    name: str
    constants: tuple  # of (name, value)


@dataclass(frozen=True)
class Structure:
    name: str
    fields: tuple  # of declarations
    constants: tuple  # of (name, value): static members


@dataclass(frozen=True)
class Opaque:
    name: str
    target: str  # "void *" or "struct X"


@dataclass
class Headers:
    functions: list = field(default_factory=list)
    types: list = field(default_factory=list)


def read(folder: Path) -> Headers:
    """Returns the C functions and the types of the headers in `folder`, in the order of their declaration."""
    names = sorted(p.name for p in folder.glob("*.h") if p.name not in LEFT_OUT)
    names.remove("transformer_engine.h")
    names.insert(0, "transformer_engine.h")
    text = "".join(f'#include "{name}"\n' for name in names)
    with tempfile.TemporaryDirectory() as stand_ins:
        for name, content in STAND_INS.items():
            Path(stand_ins, name).write_text(content)
        arguments = ["-x", "c++", "-std=c++17", f"-I{stand_ins}", f"-I{folder}", f"-I{folder.parent}"]
        arguments += [f"-isystem{path}" for path in compiler_include_folders()]
        unit = Index.create().parse("all.cpp", arguments, unsaved_files=[("all.cpp", text)])
        errors = [str(d) for d in unit.diagnostics if d.severity >= 3]
        if errors:
            raise SystemExit("the headers do not parse:\n" + "\n".join(errors))
        return collect(unit, folder)


def compiler_include_folders():
    run = subprocess.run(["g++", "-E", "-v", "-x", "c++", "/dev/null"], capture_output=True, text=True, check=True)
    listed = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", run.stderr, re.S)
    return listed.group(1).split()


def collect(unit, folder):
    headers = Headers()
    seen = set()
    for cursor in top_level(unit.cursor):
        file = cursor.location.file
        if file is None or Path(file.name).parent.resolve() != folder.resolve():
            continue
        if cursor.kind == CursorKind.FUNCTION_DECL:
            is_c = cursor.mangled_name == cursor.spelling
            if is_c and cursor.spelling.startswith("nvte_") and cursor.spelling not in seen:
                seen.add(cursor.spelling)
                headers.functions.append(function(cursor, Path(file.name).name))
        else:
            add_type(headers, cursor, seen)
    return headers


def top_level(cursor):
    for child in cursor.get_children():
        if child.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL):
            yield from top_level(child)
        else:
            yield child


def function(cursor, header):
    parameters = tuple(Parameter(p.spelling, plain(p.type.spelling)) for p in cursor.get_arguments())
    return Function(cursor.spelling, plain(cursor.result_type.spelling), parameters, header)


def plain(spelling):
    """Drops a const of the value itself: `const NVTETensor` and `void *const` are `NVTETensor` and `void *`."""
    spelling = re.sub(r"\*\s*const$", "*", spelling)
    if not spelling.endswith(("*", "&")):
        spelling = spelling.removeprefix("const ")
    return spelling


def add_type(headers, cursor, seen):
    if cursor.kind == CursorKind.ENUM_DECL and cursor.is_definition():
        name, value = cursor.spelling, enumeration(cursor)
    elif cursor.kind == CursorKind.STRUCT_DECL and cursor.is_definition():
        name, value = cursor.spelling, structure(cursor)
    elif cursor.kind == CursorKind.TYPEDEF_DECL:
        name, value = cursor.spelling, opaque(cursor)
    else:
        return
    if value is not None and "(" not in name and name not in seen:
        seen.add(name)
        headers.types.append(value)


def enumeration(cursor):
    prefix = f"{cursor.spelling}_" if cursor.is_scoped_enum() else ""
    constants = [c for c in cursor.get_children() if c.kind == CursorKind.ENUM_CONSTANT_DECL]
    return Enumeration(cursor.spelling, tuple((prefix + c.spelling, c.enum_value) for c in constants))


def structure(cursor):
    fields, constants = [], []
    for child in cursor.get_children():
        if child.kind == CursorKind.FIELD_DECL:
            fields.append(declaration(child.type, child.spelling))
        elif child.kind == CursorKind.VAR_DECL:
            value = next(c for c in child.walk_preorder() if c.kind == CursorKind.INTEGER_LITERAL)
            number = next(value.get_tokens()).spelling
            constants.append((f"{cursor.spelling}_{child.spelling}", int(number)))
    return Structure(cursor.spelling, tuple(fields), tuple(constants))


def declaration(type_, name):
    if type_.kind == TypeKind.CONSTANTARRAY:
        return f"{type_.element_type.spelling} {name}[{type_.element_count}]".replace("* ", "*")
    return f"{type_.spelling} {name}".replace("* ", "*")


def opaque(cursor):
    target = cursor.underlying_typedef_type
    if target.kind == TypeKind.POINTER:
        return Opaque(cursor.spelling, "void *")
    definition = target.get_declaration()
    if definition.kind in (CursorKind.STRUCT_DECL, CursorKind.ENUM_DECL) and definition.is_definition():
        return None  # a typedef'd definition: comes by its own cursor
    return Opaque(cursor.spelling, f"struct {cursor.spelling} ")
