"""Pack texts into samples of about one size: short ones are joined, long ones are cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cloud.datasets.stdlib import cut
from cloud.storage.errors import DataSourceError
from cloud.storage.shards import Record, split_of

_BETWEEN = b"\n\n"  # a blank line


def packed_texts(records: Iterable[Record], text_bytes: int, heldout: float) -> Iterator[Record]:
    """Yield samples with texts of at most `text_bytes` bytes, made of those of `records` in their order.

    Texts that follow each other in a split are joined with a blank line; a longer text is cut, at line ends if possible.
    A sample's key is that of its first text and the number of the part. No sample has texts of both splits: `heldout` is
    the share of the texts that is held out, by the hash of their keys, unless the records have splits. Raises
    DataSourceError for a record with other members.
    """
    open_keys: dict[str, str] = {}
    open_texts: dict[str, bytes] = {}
    for record in records:
        if set(record.members) != {"txt"}:
            raise DataSourceError(
                f"sample {record.key} has the members {', '.join(sorted(record.members))}, and only samples with nothing but "
                "txt can be packed into texts; leave out --text-bytes, or name one column: --column txt=COLUMN"
            )
        split = record.split or split_of(record.key, heldout)
        for number, part in enumerate(cut(record.members["txt"].decode("utf-8"), text_bytes)):
            before = open_texts.get(split)
            if before is not None and len(before) + len(_BETWEEN) + len(part) <= text_bytes:
                open_texts[split] = before + _BETWEEN + part
                continue
            if before is not None:
                yield Record(open_keys[split], {"txt": before}, split)
            open_keys[split], open_texts[split] = f"{record.key}-{number:05d}", part
    for split, text in open_texts.items():
        yield Record(open_keys[split], {"txt": text}, split)
