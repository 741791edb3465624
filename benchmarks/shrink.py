"""Makes the packed peers small enough to be carried together: drops what a Hopper card does not need, and packs again.

    python benchmarks/shrink.py build/carry      # in place: fa4.tar.xz and fa3.tar.xz; takes minutes

Of FlashAttention 4's packages go sources, headers, static libraries, a profiler and extensions for older torch; of
FlashAttention 3's library its symbols, and the machine code for compute capability 8.0 becomes zeros.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

DROPPED = {
    "fa4": (
        "nvidia_cutlass_dsl/dsl_packages/iket",
        "nvidia_cutlass_dsl/cu13/lib/*.a",
        "nvidia_cutlass_dsl/cu13/lib/stubs",
        *(f"tvm_ffi/{x}" for x in ("3rdparty", "src", "include", "cython", "licenses")),
        "torch_c_dlpack_ext/*_torch2[4-8]-*.so",
    ),
    "fa3": (),
}
FILTERS = {"fa4": "preset=9e,dict=384MiB,lc=4,lp=0,pb=0", "fa3": "preset=9e,dict=192MiB,lc=0,lp=4,pb=4"}
"""Of xz: x86 code is aligned to one byte, the instructions of a GPU to sixteen."""
MAGIC, WRAPPER, ENTRY = 0xBA55ED50, struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
ARCH_AT = 28


def without_code(library: bytes, arch: int) -> tuple[bytes, int]:
    """A library whose fat binaries hold zeros in place of one architecture's code; and how many of them."""
    found, count = bytearray(library), 0
    at = library.find(struct.pack("<I", MAGIC))
    while at >= 0:
        _, version, header, size = WRAPPER.unpack_from(library, at)
        stop = at + 4
        if (version, header) == (1, WRAPPER.size):
            entry, stop = at + header, at + header + size
            while entry < stop:
                _, _, own, length = ENTRY.unpack_from(library, entry)
                if struct.unpack_from("<I", library, entry + ARCH_AT) == (arch,):
                    found[entry + own : entry + own + length] = bytes(length)
                    count += 1
                entry += own + length
        at = library.find(struct.pack("<I", MAGIC), stop)
    return bytes(found), count


def shrink(pack: Path, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="attngen-shrink-") as temporary:
        folder = Path(temporary)
        subprocess.run(["tar", "xJf", pack, "-C", folder], check=True)
        for pattern in DROPPED[name]:
            for path in (folder / name).glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for library in (folder / name).glob("fa3_fwd/*.so"):
            subprocess.run(["strip", "--strip-unneeded", library], check=True)
            library.write_bytes(without_code(library.read_bytes(), 80)[0])
        draft = pack.with_suffix(".part")
        with draft.open("wb") as out:
            tar = subprocess.Popen(["tar", "cf", "-", "-C", folder, name], stdout=subprocess.PIPE)
            command = ["xz", "-T1", "--x86", f"--lzma2={FILTERS[name]}"]
            subprocess.run(command, stdin=tar.stdout, stdout=out, check=True)
            if tar.wait():
                raise SystemExit(f"tar failed on {name}")
        before = pack.stat().st_size
        draft.replace(pack)
        print(f"{pack.name}: {before:,} bytes, now {pack.stat().st_size:,}")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for name in DROPPED:
        pack = Path(sys.argv[1]) / f"{name}.tar.xz"
        if pack.exists():
            shrink(pack, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
