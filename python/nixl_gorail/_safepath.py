"""Paths that no other user can lead elsewhere. The same rules as GORAIL's own (backend/host), with the same cases as test."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

MAX_LINKS = 40


def trusted(path: str | os.PathLike[str], make: int | None = None) -> None:
    """Checks each part of an absolute path, up to the folder that it names. Folders that are missing are made with the mode make, each in the one before it.

    A PermissionError says who could replace a part: the owner of a folder or of a symbolic link who is neither root nor this
    user, or everybody, in a folder without the sticky bit that is no mounted volume. A part that does not exist gives a FileNotFoundError; those
    before it are as they should be.
    """
    path = os.fspath(path)
    if not os.path.isabs(path):
        raise ValueError(f"{path}: the path must begin with /")
    (at, above), shown, links = _enter("/", None, "/", None), "/", 0
    try:
        todo = path.split("/")
        while todo:
            name = todo.pop(0)
            if name in ("", "."):
                continue
            try:
                to = _link(name, at, shown)
            except FileNotFoundError:
                if make is None:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, make, dir_fd=at)
                to = ""
            if to:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                todo = to.split("/") + todo
                if not to.startswith("/"):
                    continue
                name = "/"
            shown = os.path.normpath(os.path.join(shown, name))
            inner, above = _enter(name, at, shown, above)
            os.close(at)
            at = inner
    finally:
        os.close(at)


def _enter(name: str, at: int | None, shown: str, above: os.stat_result | None) -> tuple[int, os.stat_result]:
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    found = os.fstat(fd)
    try:
        volume = above is not None and found.st_dev != above.st_dev
        anybody = above is not None and above.st_mode & stat.S_IWOTH and not volume  # has made the folder
        if found.st_uid not in (0, os.geteuid()) and (anybody or not _ambiguous(found.st_uid)):
            raise PermissionError(f"folder {shown} belongs to user {found.st_uid}, who could replace its content")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX and not volume:
            raise PermissionError(f"every user may replace the content of folder {shown}")
    except PermissionError:
        os.close(fd)
        raise
    return fd, found


def _link(name: str, at: int, shown: str) -> str:
    """What a symbolic link leads to; "": the name is none."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        found = os.fstat(fd)
        if not stat.S_ISLNK(found.st_mode):
            return ""
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{os.path.join(shown, name)} is a symbolic link of user {found.st_uid}, which is not followed")
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def _ambiguous(uid: int) -> bool:
    """Whether the id may stand for several users: those that are not mapped in this user namespace."""
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as f:
            overflow = int(f.read())
        with open("/proc/self/uid_map", encoding="ascii") as f:
            whole = f.read().split()[2:3] == [str(2**32 - 1)]
    except OSError:
        return False
    return uid == overflow and not whole
