"""Is the table still what it was? Between start, task, merge and a merge in another process,
anybody may replace it or change its columns.

Looked at behind the statements that write, in their transaction: these hold a lock on what they
wrote to, so that nobody renames or alters it before the COMMIT. What was written to another thing
is rolled back.

- *Before the decision* the table must be the one that the run began with, by its object id: a
  restart looks at another one as at any table.
- *At any time* it must be a permanent, logged table, and each of its partitions one: a row that
  lies in an unlogged one is gone after a crash of the server, although it was committed. A
  partition that got rows is locked until the COMMIT, so that it stays what it was seen to be.
- Its columns must take the staged values as they are. An ``ALTER TABLE … TYPE`` that came after
  the rows were staged would have them cast by assignment, which rounds.
- With a key, texts are compared by the collations that its columns have at the merge, as the unique
  index compares them, whatever they had when the rows were staged; see ``collated``.
- The unique indexes on the key must call the same keys equal as its columns do; see
  ``key_indexes``.
- Where Spark has brought each key to one task (the modes ``prepared`` and ``upsert``), the key's
  columns must still tell all texts apart that Spark does: under a collation that was changed, two
  tasks would write one key.
- No rule may change what is written; see ``rules``. That is looked at before, too, for where
  PostgreSQL takes no statement because of a rule it doesn't say which one it is.
- A replacing target must show all its rows: those that a policy hides would stay. And deleting
  them must change no other table; see ``references``. Whoever adds a foreign key waits for what the
  DELETE has locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from onceforall.errors import AttemptFailedError
from onceforall.sinks.postgres import references, rules
from onceforall.sinks.postgres.key_indexes import unfit_index
from onceforall.sinks.postgres.partitions import unfit_partition

if TYPE_CHECKING:
    from onceforall.sinks.postgres.merging import Target
    from onceforall.sinks.postgres.staging import Staged
    from onceforall.sinks.postgres.statements import Connection

_LOOK = f"""
SELECT c.oid::bigint, c.relkind::pg_catalog.text, c.relpersistence::pg_catalog.text, pg_catalog.row_security_active(c.oid),
       {rules.IN_THE_WAY}
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE n.nspname OPERATOR(pg_catalog.=) %(schema)s AND c.relname OPERATOR(pg_catalog.=) %(table)s
"""  # noqa: S608  our own text
_DIFFERENT = """
SELECT DISTINCT a.attname::pg_catalog.text, a.atttypid::bigint, t.atttypid::bigint, a.atttypmod, t.atttypmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod), pg_catalog.format_type(t.atttypid, t.atttypmod),
       s.nspname::pg_catalog.text, o.collname::pg_catalog.text
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
JOIN pg_catalog.pg_attribute t ON t.attname OPERATOR(pg_catalog.=) a.attname
JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) t.attrelid
JOIN pg_catalog.pg_namespace m ON m.oid OPERATOR(pg_catalog.=) r.relnamespace AND m.nspname OPERATOR(pg_catalog.=) %s AND r.relname OPERATOR(pg_catalog.=) %s
LEFT JOIN (pg_catalog.pg_collation o JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) o.collnamespace)
  ON o.oid OPERATOR(pg_catalog.=) t.attcollation AND a.attcollation OPERATOR(pg_catalog.<>) ALL(ARRAY[0::pg_catalog.oid, t.attcollation])
WHERE n.nspname OPERATOR(pg_catalog.=) %s AND c.relname OPERATOR(pg_catalog.=) ANY(%s) AND a.attnum OPERATOR(pg_catalog.>) 0
AND NOT a.attisdropped AND (a.atttypid OPERATOR(pg_catalog.<>) t.atttypid OR a.atttypmod OPERATOR(pg_catalog.<>) t.atttypmod OR o.oid IS NOT NULL)
"""
_BLIND = """
SELECT a.attname::pg_catalog.text, n.oid::pg_catalog.regcollation::pg_catalog.text
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_collation n ON n.oid OPERATOR(pg_catalog.=) a.attcollation
WHERE a.attrelid OPERATOR(pg_catalog.=) %s::pg_catalog.oid AND a.attname OPERATOR(pg_catalog.=) ANY(%s) AND NOT a.attisdropped
AND NOT n.collisdeterministic ORDER BY a.attnum LIMIT 1
"""
_WIDER = frozenset({
    ("int2", "int4"), ("int2", "int8"), ("int4", "int8"), ("int2", "numeric"), ("int4", "numeric"), ("int8", "numeric"), ("float4", "float8"),
    ("varchar", "text"), ("text", "varchar"),
})  # fmt: skip
_SCALE = 0xFFFF
_OIDS = {
    21: "int2",
    23: "int4",
    20: "int8",
    1700: "numeric",
    700: "float4",
    701: "float8",
    1043: "varchar",
    25: "text",
}
"""Of pg_type.dat: the same in every server."""


class Difference(NamedTuple):
    """A column that the target has otherwise than a staging table: its name, the types with their
    modifiers, then in words, and the target's collation where that is what differs.
    """

    column: str
    old: tuple[int, int]
    new: tuple[int, int]
    shown_old: str
    shown_new: str
    collation: tuple[str, str] | None


class Seen(NamedTuple):
    """What the catalogue says of a name: object id, ``relkind``, ``relpersistence``, whether
    policies hide rows from this role, and a rule that would change what is written.
    """

    oid: int
    kind: str
    persistence: str
    hides_rows: bool
    rule: tuple[str, str, str] | None


def look(connection: Connection, target: Target) -> Seen | None:
    """Look the target's name up; None when there is nothing of this name."""
    name = {"schema": target.schema, "table": target.table}
    against = rules.events(keyed=bool(target.key), replaces=target.replace)
    row = connection.execute(_LOOK, name | against).fetchone()
    if row is None:
        return None
    rule = None if row[4] is None else (str(row[4][0]), str(row[4][1]), str(row[4][2]))
    return Seen(int(row[0]), str(row[1]), str(row[2]), bool(row[3]), rule)


def look_before(connection: Connection, target: Target) -> Seen | None:
    """Look the target's name up before the first statement.

    Raises:
        AttemptFailedError: a rule would change what is written; or all rows are replaced, and
            policies hide some, which would stay.
    """
    seen = look(connection, target)
    _check_rules(target, seen)
    if target.replace and seen is not None and seen.hides_rows:
        raise AttemptFailedError(
            f"Row security hides rows of {target.schema}.{target.table} from this role, so the "
            "output mode complete would leave them there. Give it BYPASSRLS, or disable row "
            "security."
        )
    return seen


def _check_rules(target: Target, seen: Seen | None) -> None:
    if seen is not None and seen.kind in {"r", "p"} and seen.rule is not None:
        raise AttemptFailedError(rules.told(f"{target.schema}.{target.table}", seen.rule))


def check(
    connection: Connection,
    target: Target,
    staged: Sequence[Staged],
    before: Seen | None,
    *,
    is_decided: bool,
    is_shuffled: bool = False,
) -> None:
    """See that what was written to is what was meant; it costs two looks into the catalogue, one
    more where there are partitions or rows are replaced, and one or two with a key.

    Args:
        connection: in the transaction that has written.
        target: as it was decided, or shall be.
        staged: the tables that its rows come from, as ``collated`` returned them.
        before: what ``look_before`` said before the first statement.
        is_decided: that another table is no obstacle any more; it must only be one that can take
            the rows.
        is_shuffled: each key of the batch is in one task, by Spark's equality.

    Raises:
        AttemptFailedError: it isn't; the caller rolls back.
    """
    shown, seen = f"{target.schema}.{target.table}", look(connection, target)
    _check_rules(target, seen)
    if seen is None or seen != before:
        raise AttemptFailedError(
            f"{shown} was replaced, or altered, while rows were written to it."
        )
    if seen.kind not in {"r", "p"} or seen.persistence != "p":
        raise AttemptFailedError(
            f"{shown} is no permanent, logged table any more: it was replaced since the query "
            "started. Put a table in its place."
        )
    if seen.kind == "p" and (unfit := unfit_partition(connection, shown, seen.oid)):
        raise AttemptFailedError(f"{unfit}; the batch is written then.")
    if target.key and (unfit := unfit_index(connection, shown, seen.oid, target.key)):
        raise AttemptFailedError(unfit)
    if target.key and is_shuffled:
        _check_tells_apart(connection, shown, seen.oid, target.key)
    if not is_decided and target.oid not in {None, seen.oid}:
        raise AttemptFailedError(
            f"{shown} is another table than when the query started (its object id was "
            f"{target.oid}, and is {seen.oid} now). Start the query again: "
            "it looks at the table then, and goes on with this batch."
        )
    if target.replace:
        found = references.to(connection, seen.oid)
        if found is not None and found.is_harmful:
            raise AttemptFailedError(references.told(shown, found))
    _check_columns(connection, target, staged)


def collated(connection: Connection, target: Target, staged: Sequence[Staged]) -> Sequence[Staged]:
    """Return staging tables that compare the texts of a key, and those that are accumulated, as the
    target does now. Somebody may have changed a collation since they were filled: two keys would be
    one within the batch and two in the table, or the other way round. With a key it costs one look;
    ``check`` looks again.
    """
    if not target.key:
        return staged
    collations = _collations(_differences(connection, target, staged))
    return [replace(each, collations=collations) for each in staged] if collations else staged


def _check_columns(connection: Connection, target: Target, staged: Sequence[Staged]) -> None:
    shown, differences = f"{target.schema}.{target.table}", _differences(connection, target, staged)
    for each in differences:
        if each.old != each.new and not _takes_all(each.old, each.new):
            raise AttemptFailedError(
                f"Column {each.column} of {shown} was {each.shown_old} when the rows were written, "
                f"and is {each.shown_new} now: they would be changed on the way. Change it back "
                "until the batch is written; then stop the query, change it, and start again."
            )
    if target.key and staged and _collations(differences) != staged[0].collations:
        raise AttemptFailedError(
            f"The collation of a column of {shown} was altered while rows were written to it."
        )


def _differences(
    connection: Connection, target: Target, staged: Sequence[Staged]
) -> list[Difference]:
    return [
        Difference(
            str(name), (one, modifier), (other, other_modifier), str(old), str(new), collation
        )
        for name, one, other, modifier, other_modifier, old, new, *names in connection.execute(
            _DIFFERENT,
            [target.schema, target.table, target_schema(staged), [each.table for each in staged]],
        ).fetchall()
        for collation in [None if names[0] is None else (str(names[0]), str(names[1]))]
    ]


def _collations(differences: Sequence[Difference]) -> tuple[tuple[str, str, str], ...]:
    found = {(each.column, *each.collation) for each in differences if each.collation is not None}
    return tuple(sorted(found))


def _check_tells_apart(connection: Connection, shown: str, oid: int, key: Sequence[str]) -> None:
    row = connection.execute(_BLIND, [oid, list(key)]).fetchone()
    if row is not None:
        raise AttemptFailedError(
            f"Column {row[0]} of the key of {shown} has the collation {row[1]} now, which takes "
            "different texts for equal, and Spark, which brought each key to one task, doesn't. "
            "Give it back a deterministic one, or use mode='staged'; then start the query again."
        )


def target_schema(staged: Sequence[Staged]) -> str:
    """Return where the staging tables lie; they all lie there."""
    return staged[0].schema if staged else ""


def _takes_all(old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Tell whether each value of a type is one of another type, unchanged."""
    names = _OIDS.get(old[0], ""), _OIDS.get(new[0], "")
    if new[1] == -1:
        return old[0] == new[0] or names in _WIDER
    # Of numerics the modifier has the precision in its upper half, and the scale in its lower one:
    # with another scale a value would get other zeros at its end. Without a modifier it is -1.
    is_longer = old[1] != -1 and new[1] >= old[1]
    return is_longer and (
        names == ("varchar", "varchar")
        or (names == ("numeric", "numeric") and not (new[1] - old[1]) & _SCALE)
    )


__all__ = ["Seen", "check", "collated", "look", "look_before"]
