#!/usr/bin/env python3
"""Compiles every kernel for every architecture with NVRTC, no device needed, and checks what a block takes.

usage: compile.py [--nvrtc LIBRARY] [--arch sm_80,...] [--out FOLDER] [--kernel FILE] [--packings BITS,...] [--names]

Needs libnvrtc (PyPI: nvidia-cuda-nvrtc). Prints registers, spilled bytes and shared memory of each kernel, read from
the compiled object, and fails where one spills much or takes more shared memory than a consumer card has. With --out
the objects are kept under the names by which the program finds them (`ffi/src/gpu/compile.rs`); --names prints these
names and compiles nothing.
"""
import argparse
import ctypes
import glob
import multiprocessing
import os
import struct
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
ARCHITECTURES = "sm_80,sm_86,sm_89,sm_90,sm_100,sm_120"
# Packings compiled in together, as bits: the floats, K-quants and IQ3_S of most large models; everything.
SETS = "0x7f,0x7ffff"
SHARED_BYTES_MAX = 99 << 10
SPILLED_BYTES_MAX = 128
# Held to fewer registers than they would take, because more blocks on a processor gain more than the local memory
# costs: on 8.0 to 8.9, where addresses take more registers, and with every packing in.
SPILLED_BYTES_MAX_OF = {"each_up": 144, "experts_down_1": 384, "experts_up_one": 160, "matmul_4": 144}


def headers():
    return sorted(glob.glob(os.path.join(ROOT, "kernels", "*.cuh")))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def object_name(file, arch, packings):
    """FNV-1a of the headers and the source, as `ffi/src/gpu/compile.rs` computes it, keeps other versions' objects out."""
    hash = 0xCBF29CE484222325
    for text in [read(h) for h in headers()] + [read(file)]:
        for byte in text:
            hash = (hash ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{os.path.basename(file)[:-3]}.{arch}.{packings:x}.{hash:016x}.cubin"


def library(path):
    places = [path] if path else glob.glob(os.path.join(sys.prefix, "lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1*"))
    for builtins in glob.glob(os.path.join(os.path.dirname(places[0]) if places else "", "libnvrtc-builtins.so*")):
        ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
    for place in places + ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    sys.exit("no libnvrtc: pip install nvidia-cuda-nvrtc")


def compile_one(nvrtc, source, name, arch, packings):
    texts = [read(h) for h in headers()]
    names = [os.path.basename(h).encode() for h in headers()]
    array = ctypes.c_char_p * len(texts)
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), len(texts), array(*texts), array(*names))
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-default-device", f"-DPACKINGS={packings}".encode()]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if code != 0:
        # An exception reaches the parent, where a worker's exit would leave it waiting.
        raise RuntimeError(f"{name} for {arch}:\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw


def sections(elf):
    offset, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    table = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]
    text = table[names]
    for s in table:
        start = text[4] + s[0]
        yield elf[start:elf.index(b"\0", start)].decode(), s, elf[s[4]:s[4] + s[5]]


def resources(elf):
    """{kernel: [registers, local bytes, shared bytes]} from the section .nv.info, the symbols and the section headers."""
    all_sections = list(sections(elf))
    symbols = []
    for name, header, data in all_sections:
        if name == ".symtab":
            strings = next(d for n, h, d in all_sections if n == ".strtab")
            for at in range(0, len(data), 24):
                start, = struct.unpack_from("<I", data, at)
                symbols.append(strings[start:strings.index(b"\0", start)].decode())
    found = {n[6:]: [0, 0, 0] for n, h, d in all_sections if n.startswith(".text.")}
    for name, header, data in all_sections:
        if name.startswith(".nv.shared.") and name[11:] in found:
            found[name[11:]][2] = header[5]
        if name == ".nv.info":
            at = 0
            while at + 4 <= len(data):
                form, attribute, size = struct.unpack_from("<BBH", data, at)
                at += 4
                if form != 4:
                    continue
                # EIATTR_FRAME_SIZE 0x11, EIATTR_REGCOUNT 0x2f: symbol, value.
                if attribute in (0x11, 0x2F) and size == 8:
                    symbol, value = struct.unpack_from("<II", data, at)
                    if symbols[symbol] in found:
                        found[symbols[symbol]][1 if attribute == 0x11 else 0] = value
                at += size
    return found


def work(task):
    """Compiles one file for one architecture; a process of its own, for the compiler takes one thread."""
    path, arch, file, packings, out = task
    cubin = compile_one(library(path), read(file), os.path.basename(file), arch, packings)
    if out:
        aside = os.path.join(out, f".{os.getpid()}")
        with open(aside, "wb") as target:
            target.write(cubin)
        os.rename(aside, os.path.join(out, object_name(file, arch, packings)))
    return arch, packings, resources(cubin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvrtc")
    parser.add_argument("--arch", default=ARCHITECTURES)
    parser.add_argument("--out")
    parser.add_argument("--kernel")
    parser.add_argument("--packings", default=SETS, help="bits of those compiled together")
    parser.add_argument("--names", action="store_true")
    args = parser.parse_args()
    files = sorted(glob.glob(os.path.join(ROOT, "kernels", "*.cu")))
    if args.kernel:
        files = [f for f in files if os.path.basename(f) == args.kernel]
    # Files that do not know packings are the same in every set, and are kept in each: they are small.
    tasks = [(args.nvrtc, a, f, int(p, 0), args.out) for a in args.arch.split(",") for p in args.packings.split(",") for f in files]
    if args.names:
        print("\n".join(object_name(file, arch, packings) for _, arch, file, packings, _ in tasks))
        return
    library(args.nvrtc)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
    # The longest first, so that no core waits for them in the end.
    tasks.sort(key=lambda task: -os.path.getsize(task[2]))
    wrong, lines = [], []
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        try:
            compiled = list(pool.imap_unordered(work, tasks, chunksize=1))
        except RuntimeError as error:
            sys.exit(str(error))
    for arch, packings, found in compiled:
        for kernel, (registers, local, shared) in found.items():
            lines.append(
                f"{arch:8} {packings:#5x} {kernel:18} {registers:4} registers {local:6} bytes spilled or local {shared:6} bytes shared"
            )
            if shared > SHARED_BYTES_MAX:
                wrong.append(f"{kernel} for {arch} takes {shared} bytes of shared memory a block")
            if local > SPILLED_BYTES_MAX_OF.get(kernel, SPILLED_BYTES_MAX):
                wrong.append(f"{kernel} for {arch} with packings {packings:#x} keeps {local} bytes a thread in local memory")
    print("\n".join(sorted(lines)))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
