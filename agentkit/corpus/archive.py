"""Layer: sources. The corpus as one deterministic ``.tar.xz``, unpacked in the cache."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from agentkit.errors import TraceError
from agentkit.types import Files

DATA = Path(__file__).parents[1] / "data" / "seed_trajectories"
ARCHIVE = DATA / "seed_trajectories.tar.xz"
FOLDER = "seed_trajectories"


def pack(files: Files) -> bytes:
    """Files (name -> content) as a tar.xz that depends on them alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(f"{FOLDER}/{name}")
            info.size, info.mode = len(files[name]), 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def unpack(data: bytes, folder: Path) -> None:
    """Write the archive's files below ``folder``; anything but plain files is an error."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(data))) as tar:
        for member in tar:
            name = member.name.removeprefix(f"{FOLDER}/")
            source = tar.extractfile(member)
            if source is None or "/" in name or name in ("", ".", ".."):
                raise TraceError(ARCHIVE.name, f"member {member.name!r}", "plain files only")
            (folder / name).write_bytes(source.read())


def seed_folder(archive: Path = ARCHIVE) -> Path:
    """Folder of the shipped corpus's session files, unpacked once into the cache.

    The folder's name holds the archive's sha256 and it appears by one rename, so it is either
    whole and of this version, or not there.

    Raises:
        TraceError: the archive is missing or damaged.
    """
    try:
        data = archive.read_bytes()
    except OSError as error:
        raise TraceError(
            str(archive), str(error.strerror), "the shipped corpus", "reinstall the package"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    cache = Path(os.environ.get("AGENTKIT_CACHE", "~/.cache/agentkit")).expanduser()
    target = cache / f"seed_trajectories-{digest[:16]}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".seed-", dir=cache))
    try:
        unpack(data, draft)
        draft.rename(target)
    except (lzma.LZMAError, tarfile.TarError) as error:
        raise TraceError(str(archive), f"damaged: {error}", "the shipped corpus") from error
    except OSError:
        if not target.is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
