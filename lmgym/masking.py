"""Secrets, which are masked before anything is printed or written: keys of the environment, and passwords in addresses.

A server may echo its key in a reply or an error, so it is the value that is looked for, wherever it stands. Known are
the values of environment variables whose name looks like a secret's, and those that a file of keys gave (`remember`).
"""

import os
import re
from functools import cache

MASK = "***"
SECRET = re.compile(r"secret|passw|credential|(^|[_.-])(api|auth|access)?(token|key)s?$", re.IGNORECASE)
# settings of a tokenizer, names of columns and numbers of tokens only look like secrets
ORDINARY = "pad|eos|bos|unk|sep|cls|mask|stop|special|group|sort|column|label|text|prompt|reply|row|new|max|min|sample"
HARMLESS = re.compile(rf"(^|[_.-])({ORDINARY})[_-](token|key)s?$", re.IGNORECASE)
VALUE = re.compile(r"(?=.*[^A-Za-z])(?![/~])[!-~]{8,}")
"""what is masked wherever it stands: no word, such as vLLM's EMPTY, and no path of a file of keys"""
USER = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/@\"'<>]+@", re.IGNORECASE)
QUERY = re.compile(r"([?&][^\s=&\"']{0,40}(?:key|token|secret|passw|sig)[^\s=&\"']{0,40}=)[^\s&\"']+", re.IGNORECASE)

_remembered: set[str] = set()


@cache
def looks_secret(name: str) -> bool:
    """True for the name of a variable, setting or flag whose value is a secret."""
    return bool(SECRET.search(name)) and not HARMLESS.search(name)


def remember(secret: str) -> None:
    """Masks this value from here on."""
    if VALUE.fullmatch(secret):
        _remembered.add(secret)


def mask_keys(text: str) -> str:
    """The text without any key that is known."""
    for secret in _known():
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def masked(text: str) -> str:
    """The text without any key that is known, and without name, password and key in an address."""
    text = mask_keys(text)
    return QUERY.sub(rf"\1{MASK}", USER.sub(rf"\1{MASK}@", text)) if "://" in text else text


def _known() -> list[str]:
    """The longest first: one may contain another."""
    values = {os.environ.get(name, "").strip() for name in os.environ if looks_secret(name)}
    return sorted(_remembered | set(filter(VALUE.fullmatch, values)), key=len, reverse=True)
