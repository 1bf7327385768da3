"""What synthetic texts look like: templates of fields, in groups with a share each.

A field in braces is a list to draw from (`FIELDS`, and the word lists of `text.py`); all else stands for itself. A
field with a range, "{letter:1-9}", is drawn several times: words with spaces between, characters without, and of
running text, "{vi_text:2-4}", so many words in a row. The shares of the languages and groups follow what crops of
real scenes hold: half to two thirds capitals, a tenth digits or punctuation, some words cut at the border, and enough
texts without any context that a reader learns letters and not words alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inkmill.synth.characters import CHARACTERS, SIGNS, VIETNAMESE

Edit = Literal["", "cut", "tone"]


@dataclass(frozen=True, slots=True)
class Group:
    """Templates that are drawn equally often.

    Attributes:
        share: how often this group is drawn, relative to the others of its language.
        templates: as the head of this file says.
        free_case: whether the letters may be set in another case than the template's.
        edit: what is done to the text then: "cut" takes away its first, its last or one inner character; "tone" gives
            one vowel another Vietnamese tone.
    """

    share: float
    templates: tuple[str, ...]
    free_case: bool = True
    edit: Edit = ""


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = "0123456789"


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split("|"))


FIELDS: dict[str, tuple[str, ...]] = {
    # Characters, which repeat without spaces.
    "digit": tuple(_DIGITS),
    "nonzero": tuple(_DIGITS[1:]),
    "letter": tuple(_LETTERS),
    "alnum": tuple(_LETTERS + _DIGITS),
    "either": tuple(_LETTERS + _LETTERS.lower() + _DIGITS),
    "ascii": tuple(map(chr, range(33, 127))),
    "mark": tuple(".,:;!?-–()/&'\"“”‘’…•*+=#%@"),
    "vi_letter": tuple(VIETNAMESE + _LETTERS + _LETTERS.lower()),
    "rare": tuple(SIGNS),
    "any": tuple(CHARACTERS.replace(" ", "")),
    # Numbers with limits.
    "hour": (*map(str, range(24)), *(f"{hour:02}" for hour in range(24))),
    "minute": tuple(f"{minute:02}" for minute in range(60)),
    "day": (*map(str, range(1, 32)), *(f"{day:02}" for day in range(1, 32))),
    "month": (*map(str, range(1, 13)), *(f"{month:02}" for month in range(1, 13))),
    "year": tuple(map(str, range(1900, 2040))),
    "percent": tuple(map(str, range(101))),
    # Words.
    "month_name": _listed(
        "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|January|February|March|April|June|July|August|September|October"
        "|November|December"
    ),
    "weekday": _listed("Mon|Tue|Wed|Thu|Fri|Sat|Sun|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"),
    "money": tuple("$€£¥₫"),
    "vnd": _listed("đ|₫|VNĐ|VND|k|K| đ| đồng|đ/kg"),
    "unit": _listed("kg|g|mg|km|m|cm|mm|l|ml|h|min|%|°|°C|W|kW|V|A|GB|MB|m²|m³|ft|oz|lb"),
    "tld": _listed(".com|.net|.org|.vn|.com.vn|.edu|.gov|.co|.uk|.de|.io|.info"),
    "at": _listed("gmail.com|yahoo.com|hotmail.com|outlook.com|mail.vn"),
    "sign": _listed(
        "SALE|OPEN|CLOSED|EXIT|STOP|TAXI|BANK|HOTEL|CAFE|BAR|PUB|ATM|WC|TV|DVD|VIP|FREE|NEW|CAR|BUS|PARKING|NO|PUSH|PULL"
    ),
    "plate": tuple(f"{province}{series}" for province in range(11, 100) for series in "ABCDEFGHKLMNPSTUVXYZ"),
    "vi_family": _listed(
        "Nguyễn|Trần|Lê|Phạm|Hoàng|Huỳnh|Phan|Vũ|Võ|Đặng|Bùi|Đỗ|Hồ|Ngô|Dương|Lý|Đinh|Trịnh|Mai|Đoàn|Tạ|Lâm"
    ),
    "vi_given": _listed(
        "Anh|Bình|Châu|Chi|Cường|Dung|Dũng|Đạt|Đức|Giang|Hà|Hải|Hạnh|Hằng|Hiếu|Hòa|Hoa|Hồng|Hùng|Hương|Huy|Khánh"
        "|Kiên|Lan|Linh|Loan|Long|Mai|Minh|My|Nam|Nga|Ngân|Ngọc|Nhung|Phong|Phúc|Phương|Quân|Quang|Quỳnh|Sơn|Tâm"
        "|Thảo|Thắng|Thanh|Thành|Thu|Thủy|Tiến|Toàn|Trang|Trung|Tú|Tuấn|Tùng|Uyên|Vân|Việt|Vinh|Xuân|Yến"
    ),
    "vi_place": _listed(
        "Hà Nội|Đà Nẵng|Hải Phòng|Cần Thơ|Huế|Nha Trang|Đà Lạt|Vũng Tàu|Bình Dương|Đồng Nai|Quảng Ninh|Bắc Ninh"
        "|Thái Nguyên|Nghệ An|Thanh Hóa|Biên Hòa|Buôn Ma Thuột|Quy Nhơn|Phú Quốc|Sài Gòn|Tây Ninh|Long An"
        "|Tiền Giang|Kiên Giang|Cà Mau|Lâm Đồng"
    ),
    "vi_street": _listed("Đường|Phố|Ngõ|Hẻm|Quận|Phường|Huyện|Xã|Tỉnh|Thành phố|Khu|Số|Tầng"),
    "vi_shop": _listed(
        "Quán|Phở|Bún|Cơm|Bánh mì|Cà phê|Trà sữa|Nhà hàng|Nhà thuốc|Khách sạn|Nhà nghỉ|Cửa hàng|Siêu thị|Tạp hóa"
        "|Công ty|Ngân hàng|Trường|Bệnh viện|Phòng khám|Sửa xe|Rửa xe|Giặt ủi|Cắt tóc|Vàng bạc|Điện thoại|Vé số"
        "|Bảo hiểm|Cho thuê|Bán|Mua|Giảm giá|Khai trương"
    ),
}

_NUMBERS = Group(
    5, ("{digit:1-4}", "{nonzero}{digit:0-5}", "{year}", "{digit:2-4}-{digit}{digit}", "{nonzero}{digit:0-2}{unit}")
)

WORDS: dict[str, tuple[Group, ...]] = {
    "en": (
        Group(29, ("{en_word}",)),
        Group(
            6,
            (
                "{en_word},",
                "{en_word}.",
                "{en_word}:",
                "{en_word}!",
                "{en_word}?",
                "{en_word}'s",
                "({en_word})",
                '"{en_word}"',
                "“{en_word}”",
                "‘{en_word}’",
                "{en_word}-{en_word}",
                "{en_word}/{en_word}",
                "{en_word}&{en_word}",
                "{letter}.{letter}.",
                "{en_word}™",
                "{en_word}®",
                "-{en_word}",
                "•{en_word}",
            ),
        ),
        Group(20, ("{en_word:2-2}", "{en_word:2-2}", "{en_word:3-3}", "{en_word} & {en_word}", "{en_word}, {en_word}")),
        Group(20, ("{en_word}", "{en_name}"), edit="cut"),
        Group(8, ("{letter:1-9}", "{either:1-9}"), free_case=False),
        Group(5, ("{ascii:1-9}",), free_case=False),
        Group(11, ("{en_name}", "{en_name}", "{en_name}", "{sign}", "{en_name:2-2}")),
    ),
    "vi": (
        Group(45, ("{vi_word}", "{vi_word}", "{vi_text:1-1}")),
        Group(20, ("{vi_text:2-4}", "{vi_word:2-3}")),
        Group(15, ("{vi_word}", "{vi_given}"), edit="tone"),
        Group(10, ("{vi_letter:1-7}",), free_case=False),
        Group(
            10,
            (
                "{vi_family} {vi_given}",
                "{vi_family} {vi_word} {vi_given}",
                "{vi_given}",
                "{vi_place}",
                "{vi_street} {vi_word}",
                "{vi_street} {nonzero}{digit:0-2}",
                "{vi_shop}",
                "{vi_shop} {vi_given}",
                "{vi_shop} {vi_word}",
            ),
        ),
    ),
    "shared": (
        _NUMBERS,
        Group(
            10,
            (
                "{money}{nonzero}{digit:0-3}",
                "{money}{nonzero}{digit:0-2}.{digit}{digit}",
                "{nonzero}{digit:0-2}.{digit}{digit}",
                "{nonzero}{digit:0-2},{digit}{digit}€",
                "{nonzero}{digit:0-2}.000{vnd}",
                "{nonzero}{digit:0-2},000{vnd}",
                "{nonzero}.{digit}{digit}0.000{vnd}",
                "{nonzero}{digit}{vnd}",
                "{nonzero},{digit}{digit}{digit}.{digit}{digit}",
                "{percent}%",
                "-{percent}%",
            ),
            free_case=False,
        ),
        Group(
            10,
            (
                "0{nonzero}{digit}.{digit}{digit}{digit}.{digit}{digit}{digit}{digit}",
                "0{nonzero}{digit}{digit} {digit}{digit}{digit} {digit}{digit}{digit}",
                "0{nonzero}{digit:8-8}",
                "({digit}{digit}{digit}) {digit}{digit}{digit}-{digit}{digit}{digit}{digit}",
                "{digit}{digit}{digit}-{digit}{digit}{digit}{digit}",
                "+84 {nonzero}{digit} {digit}{digit}{digit} {digit}{digit}{digit}{digit}",
                "1-800-{digit}{digit}{digit}-{digit}{digit}{digit}{digit}",
                "ĐT: 0{nonzero}{digit}{digit}{digit}{digit}{digit}{digit}{digit}{digit}",
                "Tel: {digit}{digit}{digit}{digit} {digit}{digit}{digit}{digit}",
            ),
            free_case=False,
        ),
        Group(
            8,
            (
                "{day}/{month}/{year}",
                "{day}/{month}",
                "{day}-{month}-{year}",
                "{day}.{month}.{year}",
                "{month_name} {day}",
                "{day} {month_name} {year}",
                "{month_name} {year}",
                "{weekday}",
                "{hour}:{minute}",
                "{hour}h{minute}",
                "{hour}:{minute} AM",
                "{hour}:{minute} PM",
                "{hour}h - {hour}h",
                "{weekday} - {weekday}",
            ),
        ),
        Group(
            6,
            (
                "{plate}-{digit}{digit}{digit}.{digit}{digit}",
                "{plate}{nonzero} {digit}{digit}{digit}.{digit}{digit}",
                "{plate}-{digit}{digit}{digit}{digit}",
                "{letter}{letter}{letter} {digit}{digit}{digit}{digit}",
                "{letter}{letter}{digit}{digit} {letter}{letter}{letter}",
                "{letter}-{digit}{digit}{digit}-{letter}{letter}",
            ),
            free_case=False,
        ),
        Group(
            9,
            (
                "www.{en_word}{tld}",
                "{en_word}{tld}",
                "{en_word}{en_word}{tld}",
                "http://{en_word}{tld}",
                "www.{en_word}{tld}/{en_word}",
                "{en_word}@{at}",
                "{en_word}{digit:1-3}@{at}",
                "info@{en_word}{tld}",
                "#{en_word}",
                "@{en_word}",
                "fb.com/{en_word}",
            ),
            free_case=False,
        ),
        Group(
            14,
            (
                "{letter}{digit}",
                "{letter:1-3}{digit:1-3}",
                "{alnum:2-8}",
                "{digit:1-2}{letter}",
                "No.{digit:1-3}",
                "{either:2-8}",
            ),
            free_case=False,
        ),
        Group(8, ("{mark:1-3}", "{mark}{en_word}{mark}", "{en_word}{mark:1-2}", "{digit}{mark}{digit}")),
        Group(
            30,
            (
                "{sign}",
                "{en_word}{rare}",
                "{rare}{nonzero}{digit:0-2}",
                "{nonzero}{digit:0-2}{rare}",
                "{rare} {vi_word}",
            ),
        ),
    ),
    "random": (Group(1, ("{any:1-9}",), free_case=False),),
}
"""Texts of a word or few, by language."""

LINES: dict[str, tuple[Group, ...]] = {
    "en": (
        Group(50, ("{en_word:3-9}",)),
        Group(10, ("{en_word:2-4}, {en_word:2-4}.",)),
        Group(8, ("{en_name} {en_name}, {en_word:2-5}", "{en_word:2-4}: {en_name} {en_name}")),
    ),
    "vi": (
        Group(60, ("{vi_text:4-14}",), free_case=False),
        Group(15, ("{vi_text:4-9}",)),
        Group(
            25,
            (
                "{vi_street} {nonzero}{digit:0-2}, {vi_street} {vi_word} {vi_word}, {vi_place}",
                "Số {nonzero}{digit:0-2} {vi_street} {vi_family} {vi_given}, {vi_street} {nonzero}, {vi_place}",
                "{vi_shop} {vi_family} {vi_given} - ĐT: 0{nonzero}{digit:8-8}",
                "{vi_word:2-5}: {nonzero}{digit:0-2}.000{vnd}",
            ),
            free_case=False,
        ),
    ),
    "shared": (
        Group(
            30,
            (
                "{en_word:1-3} {nonzero}{digit:0-2}.{digit}{digit}",
                "{nonzero} x {en_word:1-3} {nonzero}{digit}.{digit}{digit}",
                "TOTAL: {money}{nonzero}{digit:0-3}.{digit}{digit}",
                "{day}/{month}/{year} {hour}:{minute}:{minute}",
                "TEL: {digit}{digit}-{digit:7-8} FAX: {digit}{digit}-{digit}{digit}{digit}{digit}{digit}{digit}{digit}",
                "{en_word:1-2} NO: {letter:1-3}{digit:4-8}",
                "NO {nonzero}{digit:0-2}, {en_name} {en_name} {nonzero}/{digit}{digit},",
                "{digit}{digit}{digit}{digit}{digit} {en_name:2-3}.",
                "{en_word:2-3} @ {nonzero}{digit:0-1}.{digit}0 {nonzero}{digit:0-1}.{digit}0 SR",
            ),
        ),
        Group(6, ("{digit:10-16}", "{alnum:10-20}"), free_case=False),
    ),
    "random": (Group(1, ("{any:8-20}",), free_case=False),),
}
"""Longer texts: a printed or written line."""
