"""Keys of a log's entries, by which its compactor keeps only the newest entry of each.

A key becomes a digest of 16 bytes: the compactor notes the digest with the offset of the newest
entry, so a long key takes no more room than a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from workstealing.errors import ConfigurationError, UndecodableEntryError
from workstealing.structures.layout import checked_text
from workstealing.structures.log.codecs import Codec, codec_of, decode_all

DIGEST_BYTES = 16

CompactBy = str | Callable[[Any], str | bytes | None]
"""The name of a field, or a function of an entry."""


class EntryKeys:
    """Finds the key of an entry.

    Arguments:
        compact_by: the name of a field of entries that are dicts, or a function of an entry as the
            codec reads it, which returns its key as a str or bytes, or None for an entry without
            one.
        codec: of the log.

    Attributes: rule: what the log notes, so that no two compactors go by different keys.

    Raises: ConfigurationError.
    """

    def __init__(self, compact_by: CompactBy, codec: Codec) -> None:
        self._codec = codec
        if callable(compact_by):
            self._key_of: Callable[[Any], Any] = compact_by
            self.rule = b"a function"
            return
        field = checked_text(compact_by, "compact_by")
        if codec is codec_of():
            raise ConfigurationError(
                f"compact_by={compact_by!r} names a field, and entries without a codec are bytes:"
                " give codec='json' or 'msgpack', or a function of an entry as compact_by"
            )
        self._key_of = lambda entry: _field_of(entry, compact_by)
        self.rule = b"the field " + (field.encode() if isinstance(field, str) else field)

    def digest_of(self, data: bytes | None, offset: int) -> bytes | None:
        """Return the digest of an entry's key.

        Arguments:
            data: the entry as the log has it; None for one that is not there.

        Returns: None if it has no key: also if the codec cannot read it. Raises:
        ConfigurationError if the function returns anything else; the function's own errors.
        """
        if data is None:
            return None
        try:
            (entry,) = decode_all(self._codec, (data,), offset)
        except UndecodableEntryError:
            return None
        key = self._key_of(entry)
        if key is None:
            return None
        if isinstance(key, str):
            # JSON may hold half of a pair of surrogates.
            key = key.encode(errors="surrogatepass")
        if not isinstance(key, bytes):
            raise ConfigurationError(
                f"compact_by returned a {type(key).__name__} for the entry {offset}: let it return"
                " a str or bytes, or None for an entry without a key; nothing was changed"
            )
        return blake2b(key, digest_size=DIGEST_BYTES).digest()

    def newest(
        self, entries: Sequence[bytes | None], first: int
    ) -> tuple[dict[bytes, int], dict[bytes, list[int]]]:
        """Return each digest's newest offset among some entries, and its older ones.

        Arguments:
            entries: as the log has them.
            first: the offset of the first one.
        """
        newest: dict[bytes, int] = {}
        older: dict[bytes, list[int]] = {}
        for offset, data in enumerate(entries, first):
            digest = self.digest_of(data, offset)
            if digest is not None:
                if digest in newest:
                    older.setdefault(digest, []).append(newest[digest])
                newest[digest] = offset
        return newest, older


def entry_keys(compact_by: CompactBy | None, codec: Codec) -> EntryKeys | None:
    """Return what finds the keys of a log's entries, None without a key. Raises: as `EntryKeys`."""
    return None if compact_by is None else EntryKeys(compact_by, codec)


def _field_of(entry: Any, field: str | bytes) -> str | bytes | None:
    """Return a field as a key, with a letter for its kind: 1 and "1" are two keys."""
    value = entry.get(field) if isinstance(entry, dict) else None
    if isinstance(value, str):
        return "t" + value
    if isinstance(value, bytes):
        return b"t" + value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"n{value:x}"
    return None
