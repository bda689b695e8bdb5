"""multipart/form-data as it comes in: files stay in memory, and what is over a limit ends the reading at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vtk.errors import UsageError

PICTURE_FIELDS = frozenset({"image", "images", "image[]", "images[]"})
MAX_FIELDS = 1024
MAX_FIELD_BYTES = 1 << 16
MAX_HEAD_BYTES = 1 << 13


@dataclass
class Form:
    """pictures: files in their order. fields: the values of every other name, in their order."""

    pictures: list[bytes] = field(default_factory=list)
    fields: dict[str, list[str]] = field(default_factory=dict)


class FormReader:
    """Takes a form piece by piece. Its memory is what came in, which the server bounds as a whole."""

    def __init__(self, content_type: str, *, max_pictures: int) -> None:
        """Raises UsageError for a content type without a usable boundary."""
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise UsageError("The form has no boundary: Content-Type must be multipart/form-data; boundary=….")
        self._max_pictures = max_pictures
        self._form = Form()
        self._num_fields = 0
        self._is_complete = False
        self._begin_part()
        with _form_errors():
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_header_name,
                    "on_header_value": self._add_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_head,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end_form,
                },
            )

    def feed(self, chunk: bytes) -> None:
        """Raises UsageError for a damaged form, and for more pictures, fields or bytes in a field than allowed."""
        with _form_errors():
            self._parser.write(chunk)

    def finish(self) -> Form:
        """The form after its last piece. Raises UsageError when its end is missing."""
        if not self._is_complete:
            raise UsageError("The form ends before its closing boundary.", hint="Send it again, whole.")
        return self._form

    def _begin_part(self) -> None:
        self._head_bytes = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = ""
        self._name = ""
        self._data = bytearray()

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_head(end - start)
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_head(end - start)
        self._header_value += data[start:end]

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise UsageError(f"The head of a form part is larger than {MAX_HEAD_BYTES:,} bytes.")

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value.decode("latin-1")
        self._header_name.clear()
        self._header_value.clear()

    def _end_head(self) -> None:
        self._name = parse_options_header(self._disposition)[1].get(b"name", b"").decode("utf-8", "replace")
        if not self._name:
            raise UsageError("A part of the form has no name.", hint="Name pictures 'images', as curl -F images=@FILE.")
        if self._name in PICTURE_FIELDS:
            if len(self._form.pictures) == self._max_pictures:
                raise UsageError(
                    f"The form has more than {self._max_pictures} pictures.", hint="Send several requests."
                )
            return
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise UsageError(f"The form has more than {MAX_FIELDS:,} fields.")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._data += memoryview(data)[start:end]
        if len(self._data) > MAX_FIELD_BYTES and self._name not in PICTURE_FIELDS:
            shown = self._name[:100]
            raise UsageError(
                f"The form field '{shown}' is larger than {MAX_FIELD_BYTES:,} bytes.",
                hint="Pictures come in fields named 'images'.",
            )

    def _end_part(self) -> None:
        if self._name in PICTURE_FIELDS:
            self._form.pictures.append(bytes(self._data))
            return
        try:
            value = self._data.decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"The form field '{self._name[:100]}' is not UTF-8 text.") from None
        self._form.fields.setdefault(self._name, []).append(value)

    def _end_form(self) -> None:
        self._is_complete = True


@contextmanager
def _form_errors() -> Iterator[None]:
    try:
        yield
    except FormParserError as error:
        raise UsageError("The body is not a whole multipart/form-data form.") from error
