"""A node's own account of the questions that it has answered under secure aggregation.

It is a file beside the node's key, and outlives messages, runs and restarts. Noise follows from a
secret in it, the question and the answer: asked again, a node sends the same noisy numbers, so that
a run which is continued spends nothing twice. The server must then not learn two sums of the same
noisy numbers over different devices, whose difference would have less noise: whatever was told of
a peer in one session binds the node in all others (docs/privacy.md has the argument).

Whoever loses the file loses the secret too, and draws other noise from then on.
"""

import hashlib
import hmac
import os
import secrets
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedtiny.errors import SecureAggregationError
from fedtiny.files import WRITING
from fedtiny.flower.node_log import NodeError
from fedtiny.paths import user_path
from fedtiny.privacy.secagg.terms import SEEDS, Terms

PATH, LIMIT = "secagg-account", "secagg-questions"
SYNCHRONOUS = "EXTRA"  # with less, a power cut may undo what was entered last
TABLES = """
CREATE TABLE IF NOT EXISTS secret (one INTEGER PRIMARY KEY CHECK (one = 1), bytes BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS questions (
    number INTEGER PRIMARY KEY, question BLOB NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
    noise REAL NOT NULL, answer BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS told (
    question BLOB NOT NULL, peer INTEGER NOT NULL, kind INTEGER NOT NULL,
    PRIMARY KEY (question, peer));
"""


class QuestionAccount:
    """How many questions were answered, with which noise, and what was told of each noisy one."""

    def __init__(self, path: Path, most: int | None = None) -> None:
        self._path, self._most = path, most

    @classmethod
    def of(cls, node: Mapping[str, Any], key: str) -> "QuestionAccount":
        """As the node's owner has set it up; beside the key unless another place is given."""
        path = user_path(str(node.get(PATH, f"{key}.account")), PATH)
        return cls(path, int(node[LIMIT]) if LIMIT in node else None)

    def check(self, terms: Terms, noise: float) -> None:
        """Refuse a question beyond the owner's limit; one that is asked again tells nothing new."""
        with self._open() as db:
            if not (noise and _answer(db, terms)):
                self._check_limit(db)

    def answer(self, terms: Terms, noise: float, numbers: bytes) -> bytes:
        """Enter an answer before it is sent, and give the seed of its noise.

        Other numbers than before would have other noise, and the difference of two sums only that.
        """
        with self._open() as db:
            (secret,) = db.execute("SELECT bytes FROM secret").fetchone()
            seed = hmac.digest(secret, b"share of noise" + terms.question + numbers, "sha256")
            answer = hashlib.sha256(b"answer" + seed).digest()
            before = _answer(db, terms) if noise else None
            if before not in (None, answer):
                raise SecureAggregationError(
                    "this node has answered the same question before, and finds another answer now"
                )
            if before is None:
                self._check_limit(db)
                row = (terms.question, terms.run.hex(), terms.round, noise, answer)
                columns = "question, run, round, noise, answer"
                db.execute(f"INSERT INTO questions ({columns}) VALUES (?, ?, ?, ?, ?)", row)
        return seed

    def tell(self, terms: Terms, peers: Collection[int], kind: int) -> None:
        """Enter seeds or shares before they are told; of one peer never both, in any session.

        Without noise a session binds itself alone. An account that lost the question tells nothing.
        """
        with self._open() as db:
            asked = "SELECT MAX(noise) FROM questions WHERE question = ?"
            (noise,) = db.execute(asked, (terms.question,)).fetchone()
            if noise is None:
                raise SecureAggregationError(
                    "this node's account has lost the question: nothing more is told of it"
                )
            if not noise:
                return
            found = db.execute("SELECT peer, kind FROM told WHERE question = ?", (terms.question,))
            before: dict[int, int] = dict(found.fetchall())
            if both := [peer for peer in peers if before.get(peer, kind) != kind]:
                raise SecureAggregationError(
                    f"when the same question was asked before, the other secret of device "
                    f"{min(both)} was told: this one is not told too"
                )
            after = before | dict.fromkeys(peers, kind)
            seeds = sum(one == SEEDS for one in after.values())
            if seeds > terms.degree - terms.needed:
                raise SecureAggregationError(
                    "of too many neighbors the seed would be told, over all times that the same "
                    "question was asked"
                )
            rows = [(terms.question, peer, kind) for peer in peers]
            db.executemany("INSERT OR IGNORE INTO told VALUES (?, ?, ?)", rows)

    def counts(self) -> dict[str, list[float]]:
        """By run, as sessions name it, the noise multiplier of every question."""
        found: dict[str, list[float]] = {}
        with self._open() as db:
            for run, noise in db.execute("SELECT run, noise FROM questions ORDER BY number"):
                found.setdefault(run, []).append(noise)
        return found

    def _check_limit(self, db: sqlite3.Connection) -> None:
        (count,) = db.execute("SELECT COUNT(*) FROM questions").fetchone()
        if self._most is not None and count >= self._most:
            raise NodeError(
                f"this node has answered as many questions as its owner allows ({LIMIT})"
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The account, locked; what is entered is on disk when this ends."""
        try:
            os.close(os.open(self._path, os.O_RDWR | WRITING, 0o600))
            with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
                db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
                db.execute("BEGIN IMMEDIATE")
                _set_up(db)
                yield db
                db.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise NodeError(
                "this node cannot keep its account of questions: give a file that it can write "
                f"as {PATH}, which no other node has"
            ) from error


def _set_up(db: sqlite3.Connection) -> None:
    for statement in filter(str.strip, TABLES.split(";")):
        db.execute(statement)
    db.execute("INSERT OR IGNORE INTO secret VALUES (1, ?)", (secrets.token_bytes(32),))


def _answer(db: sqlite3.Connection, terms: Terms) -> bytes | None:
    """By what the noisy answer to a question is known, if it was given."""
    asked = "SELECT answer FROM questions WHERE question = ? AND noise > 0"
    found = db.execute(asked, (terms.question,)).fetchone()
    return bytes(found[0]) if found else None
