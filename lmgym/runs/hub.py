"""The Hugging Face hub: whose token is used, what its refusals mean, and calls that are tried again.

huggingface_hub itself repeats uploads and downloads; commits and the creation of repositories it does not. Tokens come
from the environment, HF_TOKEN or its original name HUGGINGFACE_TOKEN, or from `hf auth login`; a message never has one.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from lmgym.aids import aid
from lmgym.console import say
from lmgym.errors import InputError, one_line, shown
from lmgym.masking import masked, remember
from lmgym.runs.tracking import hub_token

T = TypeVar("T")

TRIES = 6
"""of a call that fails for a reason that may pass"""
FIRST_WAIT, LONGEST_WAIT, LONGEST_ASKED = 1.0, 60.0, 300.0
"""seconds before the second try, at most between two, and at most where the hub asks for a time"""
CONFLICT, TOO_MANY = 412, 429
"""statuses: the branch has another newest commit than was said; too many requests"""
PASSING = {408, CONFLICT, TOO_MANY, 500, 502, 503, 504}
NAME_NEEDED = "needed: OWNER/NAME, of letters, digits and - _ . , where OWNER is you or an organisation of yours"


def check_name(repository: str, flag: str = "the repository") -> None:
    """Raises InputError for what is no OWNER/NAME of the hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
        fits = repository.count("/") == 1
    except HFValidationError:
        fits = False
    if not fits:
        raise InputError(f"{flag} {shown(repository)} is no name of a repository; {NAME_NEEDED}")


def open_hub(needed_for: str) -> Any:
    """huggingface_hub's HfApi with the user's token. Raises InputError if there is none."""
    from huggingface_hub import HfApi

    token = find_token()
    if not token:
        raise InputError(
            f"found no token of the hub; needed: HF_TOKEN, set to a token that may write to {needed_for}, or "
            "`hf auth login`"
        )
    return HfApi(token=token)


def find_token() -> str | None:
    """The token that is sent to the hub: of the environment, or of the hub's own login. It is masked from here on."""
    from huggingface_hub import get_token

    token = hub_token() or get_token()
    if token:
        remember(token)
    return token


def _origin() -> str:
    """The source of the token, in words."""
    found = (name for name in ("HF_TOKEN", "HUGGINGFACE_TOKEN") if os.environ.get(name))
    return next((f"the token in {name}" for name in found), "the token of `hf auth login`")


def check_access(hub: Any, repository: str, tries: int = TRIES) -> None:
    """Raises InputError if the token is not valid, may only read, or cannot write to the repository's owner.

    Errors of the connection are raised as they are, once `tries` have failed.
    """
    owner = repository.partition("/")[0]
    about = call(hub.whoami, "asking the hub who you are", repository, tries)
    user, token = about.get("name"), about.get("auth", {}).get("accessToken", {})
    roles = {team.get("name"): team.get("roleInOrg") for team in about.get("orgs", ())}
    if owner != user and owner not in roles:
        mine = ", ".join([str(user), *map(str, roles)])
        raise InputError(f"{_origin()} is of {one_line(mine)}, which is not {shown(owner)}; {NAME_NEEDED}")
    if token.get("role") == "read" or roles.get(owner) == "read":
        raise InputError(f"{_origin()} may only read from {owner}; needed: one with the role write, in HF_TOKEN")
    if token.get("role") == "fineGrained" and not _may_write(token.get("fineGrained") or {}, repository):
        raise InputError(
            f"{_origin()} is fine-grained and may not write to {repository}; needed: one with write access to the "
            f"repositories of {owner}, in HF_TOKEN"
        )


@aid("asking the hub whether {0} may be pushed to", refuses=True)
def refuse_unfit_push(repository: str) -> None:
    """Raises InputError for a push that the hub would refuse; if it does not answer now, a line says so."""
    from huggingface_hub import constants

    check_name(repository, "--push_to_hub")
    if constants.HF_HUB_OFFLINE:
        raise InputError(
            f"--push_to_hub {repository} with HF_HUB_OFFLINE set; needed: unset it, or push later: lmgym push"
        )
    check_access(open_hub(repository), repository, tries=2)


def _may_write(granted: Mapping[str, Any], repository: str) -> bool:
    """True if a fine-grained token may write to a repository, or if what it may do is not said."""
    scopes = granted.get("scoped")
    if not isinstance(scopes, list):
        return True
    names = {repository, repository.partition("/")[0]}
    return any(one.get("entity", {}).get("name") in names and "repo.write" in one["permissions"] for one in scopes)


def call(ask: Callable[[], T], doing: str, repository: str, tries: int = TRIES) -> T:
    """The result of `ask()`, which is called again after a failure that may pass. It must be right to repeat.

    Raises InputError for a refusal, of a token for example, and the last error if every try fails.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    def tell(state: Any) -> None:
        wait = f"trying again in {state.next_action.sleep:.0f} s ({state.attempt_number} of {tries - 1})"
        say(f"{doing}: {describe(state.outcome.exception())}; {wait}", error=True)

    retrying = Retrying(
        stop=stop_after_attempt(tries),
        retry=retry_if_exception(may_pass),
        wait=_wait,
        before_sleep=tell,
        reraise=True,
    )
    try:
        return retrying(ask)
    except InputError:
        raise
    except Exception as error:
        if refusal := explain(error, repository, writing=True):
            raise InputError(refusal) from error
        raise


def may_pass(error: BaseException) -> bool:
    """True for an error of the hub or of the way to it that another try may not have."""
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled

    response = getattr(error, "response", None)
    if response is not None:
        return response.status_code in PASSING
    return isinstance(error, HTTPError | ConnectionError | TimeoutError) and not isinstance(error, OfflineModeIsEnabled)


def _wait(state: Any) -> float:
    """Seconds before the next try: as the hub asks, or twice as long each time."""
    from tenacity import wait_exponential_jitter

    response = getattr(state.outcome.exception(), "response", None)
    asked = response.headers.get("Retry-After", "") if response is not None else ""
    if asked.isdigit():
        return min(float(asked), LONGEST_ASKED)
    return wait_exponential_jitter(initial=FIRST_WAIT, max=LONGEST_WAIT)(state)


def describe(error: BaseException) -> str:
    """An error in a line, with the status of an answer."""
    response = getattr(error, "response", None)
    if response is not None:
        said = response.headers.get("X-Error-Message", "")
        return masked(f"the hub answered {response.status_code}{f' ({one_line(said, 120)})' if said else ''}")
    lines = str(error).strip().splitlines() or [""]
    return masked(f"{type(error).__name__}{f' ({one_line(lines[0], 120)})' if lines[0] else ''}")


def explain(error: BaseException, repository: str, writing: bool = False) -> str:
    """A refusal of the hub that an error comes from, with what to set; empty for an error of another kind.

    Libraries word a refusal as a wrong name or a broken connection; the answer is in the errors below theirs.
    """
    response = next(filter(None, (getattr(one, "response", None) for one in _below(error))), None)
    status = getattr(response, "status_code", 0)
    if response is None or status not in (401, 403, 404):
        return ""
    code, has_token = response.headers.get("X-Error-Code", ""), bool(find_token())
    if status == 404 and (code != "RepoNotFound" or not has_token):
        return ""
    do = "write to" if writing else "read"
    name, sent = repository.partition("@")[0], _origin() if has_token else "no token"
    found, needed = f"{sent} was sent", f"HF_TOKEN, set to a token that may {do} it"
    if code == "GatedRepo":
        found, needed = f"it is gated; {found}", f"accept its conditions on its page of the hub, and {needed}"
    elif status == 401 and has_token:
        found, needed = f"{sent} is not valid", needed if writing else f"{needed} (or, for what is public, none)"
    elif status == 401:
        found = f"there is no such repository, or it is private; {found}"
        needed = f"its right name, or {needed}, or `hf auth login`"
    elif status == 403:
        found = f"{sent} may not {do} it"
    else:
        found, needed = f"there is no such repository that {sent} may see", f"its right name, or {needed}"
    return f"the hub answered {status} for {one_line(name, 80)}: {found}; needed: {needed}"


def refusal_of(repository: str, kind: str) -> str:
    """As `explain`, by asking for a repository whose refusal a library did not pass on; `kind`: "dataset"."""
    from huggingface_hub import HfApi

    try:
        HfApi(token=find_token()).repo_info(repository, repo_type=kind)
    except Exception as error:  # without a network there is no answer to explain
        return explain(error, repository)
    return ""


def _below(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it was raised from, or while they were handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
