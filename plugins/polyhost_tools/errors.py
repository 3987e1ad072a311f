"""Errors of the file and search tools, and how the operating system's errors become them."""

from __future__ import annotations

import errno

from polyhost.interfaces import ToolError


class ArgumentError(ToolError):
    """Arguments that the schema admits and the tool does not."""

    default_code = "INVALID_ARGS"

    def __init__(self, problem: str) -> None:
        super().__init__(f"invalid arguments: {problem}", name="ToolArgsError")


class FileError(ToolError):
    """A file operation failed; ``code`` is one of the ``FS_`` codes of agent-core 2.14."""

    default_code = "FS_IO_ERROR"


class SearchError(ToolError):
    """A search failed; ``code`` is one of the ``SEARCH_`` codes of agent-core 2.14."""

    default_code = "SEARCH_FAILED"


_CODES = {
    errno.ENOENT: ("FS_NOT_FOUND", "file not found"),
    errno.ENOTDIR: ("FS_NOT_DIRECTORY", "a part of the path is not a directory"),
    errno.EISDIR: ("FS_NOT_REGULAR_FILE", "it is a directory, not a file"),
    errno.EACCES: ("FS_PERMISSION_DENIED", "permission denied"),
    errno.EPERM: ("FS_PERMISSION_DENIED", "permission denied"),
    errno.EROFS: ("FS_PERMISSION_DENIED", "the file system is read-only"),
}


def file_error(error: OSError, path: str) -> FileError:
    """The file error for what the operating system said about ``path``."""
    code, reason = _CODES.get(error.errno or 0, ("FS_IO_ERROR", error.strerror or str(error)))
    return FileError(f"{path}: {reason}", code=code)
