"""Files kept as gzip: read packed or plain, and written without name and time, so that equal content gives equal bytes."""

import gzip


def pack(text):
    """The bytes of a packed file."""
    return gzip.compress(text.encode(), 9, mtime=0)


def unpacked(path):
    """The bytes of a file, unpacked where it is gzip."""
    with open(path, "rb") as f:
        data = f.read()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def write(path, text):
    """Keeps a text packed."""
    with open(path, "wb") as f:
        f.write(pack(text))
