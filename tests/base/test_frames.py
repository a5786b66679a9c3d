import zlib

import pytest

from klover.base.checks import DamagedFile
from klover.base.frames import HEAD, pack, unpack

PIECES = [b"one", b"", b"three" * 10]


def read(path):
    with open(path, "rb") as file:
        return [piece for _, piece in unpack(file, "file f")]


def test_pieces_come_back_with_the_places_of_their_ends(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"".join(map(pack, PIECES)))
    with open(path, "rb") as file:
        assert list(unpack(file, "file f")) == [
            (HEAD + 3, b"one"),
            (2 * HEAD + 3, b""),
            (3 * HEAD + 53, PIECES[2]),
        ]


def test_a_torn_end_is_dropped_wherever_it_is_torn(tmp_path):
    path, whole = tmp_path / "f", b"".join(map(pack, PIECES))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read(path) == PIECES[: (length >= HEAD + 3) + (length >= 2 * HEAD + 3)]
    # What a loss of power leaves: a length that was promised, and data that had not come to the disk.
    for torn in (whole[:-1] + b"\0", whole[: 2 * HEAD + 3] + bytes(1000)):
        path.write_bytes(torn)
        assert read(path) == PIECES[:2]


def test_a_changed_byte_is_refused_with_its_place(tmp_path):
    path, whole = tmp_path / "f", b"".join(map(pack, PIECES))
    for place in range(2 * HEAD + 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        begin = 0 if place < HEAD + 3 else HEAD + 3
        with pytest.raises(DamagedFile, match=rf"file f is damaged: what begins at byte {begin} is not.*truncate -s"):
            read(path)


def test_a_length_beyond_the_end_is_believed_if_its_checksum_says_so(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(pack(b"one") + pack(b"x" * 100)[:HEAD])
    assert read(path) == [b"one"]
    assert zlib.crc32(bytes(8)) != 0  # so that zeros are no head
