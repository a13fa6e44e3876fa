"""How often kinds of personal data occur in a text: counts only, never a value.

Patterns and check digits, so a hint and no proof: names and addresses are not seen, and an order
number may look like a card.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date

KINDS = ("email", "cn_mobile", "cn_resident_id", "bank_card", "ipv4")

_EMAIL = re.compile(r"[a-z0-9._%+-]{1,64}@(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}(?![a-z0-9])", re.I)
_MOBILE = re.compile(r"(?<![0-9])(?:\+?86[ -]?)?1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}(?![0-9])")
_RESIDENT_ID = re.compile(r"(?<![0-9a-z])[1-9][0-9]{16}[0-9x](?![0-9a-z])", re.I)
# 15 to 19 digits of the ranges that card schemes issue (3 to 6), in groups or not.
_CARD = re.compile(
    r"(?<![0-9a-z])(?:3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5}"
    r"|[3-6][0-9]{3}(?:[ -]?[0-9]{4}){2}[ -]?[0-9]{4}(?:[ -]?[0-9]{1,3})?)(?![0-9a-z])",
    re.I,
)
_IPV4 = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9])(?!\.[0-9])")

_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_ID_CHECK = "10X98765432"


def count_pii(text: str) -> dict[str, int]:
    """Occurrences in `text` by kind (all of `KINDS`); full-width digits count too."""
    text = unicodedata.normalize("NFKC", text)
    ids = [found for found in _RESIDENT_ID.findall(text) if is_resident_id(found)]
    cards = [found for found in _CARD.findall(text) if found not in ids and is_luhn(found)]
    addresses = [
        found for found in _IPV4.findall(text) if all(int(part) <= 255 for part in found.split("."))
    ]
    return {
        "email": len(_EMAIL.findall(text)),
        "cn_mobile": len(_MOBILE.findall(text)),
        "cn_resident_id": len(ids),
        "bank_card": len(cards),
        "ipv4": len(addresses),
    }


def is_resident_id(number: str) -> bool:
    """Whether 18 characters are a Chinese resident identity number (GB 11643-1999).

    Digits 7 to 14 must be a date and the last one the ISO 7064 MOD 11-2 check character.
    """
    try:
        date(int(number[6:10]), int(number[10:12]), int(number[12:14]))
    except ValueError:
        return False
    total = sum(weight * int(digit) for weight, digit in zip(_ID_WEIGHTS, number[:17], strict=True))
    return _ID_CHECK[total % 11] == number[17].upper()


def is_luhn(number: str) -> bool:
    """Whether the digits of `number` satisfy the Luhn check of ISO/IEC 7812-1."""
    digits = [int(character) for character in reversed(number) if character.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0
