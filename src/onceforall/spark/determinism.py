"""Whether the replay of a batch gives the very same rows in the very same tasks, as far as Spark's
plans tell (``redo="auto"``).

A replay is trusted when everything in the plans is known to be the same in each run: nodes and
aggregate functions by a list, all other expressions by Spark's own word (``deterministic``), except
for those that Spark calls deterministic and that aren't (Python's functions, the current time, sums
of floating-point numbers). Whatever is not on the lists, or can't be read, isn't trusted.

Two plans count. That of the *query* is fixed for a run, and is read once. ``foreachBatch`` gets a
batch that hides it; that of each *frame* that a function or a ``transform`` makes of the batch is
read per batch, in three calls into the JVM while it looks as before.

What no plan shows: values that a function computes in Python and puts into a plan as literals,
topics or files that change below the same offsets, and changed code.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from onceforall.spark.plans import leaves_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LONGEST_TEXT = 300_000
"""Of a plan whose text (`_weight`) is longer no JSON is made; it has some twenty times as much."""

KEPT = 64
"""A function may make ever other plans; what was read longest ago is read again."""

SOURCES = frozenset(
    {
        "DeltaSource",
        "FileStreamSource",
        "KafkaMicroBatchStream",
        "KafkaSource",
        "RatePerMicroBatchStream",
        "RateStreamMicroBatchStream",
        "SparkMicroBatchStream",  # Iceberg's
    }
)
"""Sources that give the same rows again for the same offsets."""

_PASSING = frozenset(
    {
        "CollectMetrics",
        "CTERelationDef",
        "CTERelationRef",
        "Distinct",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "Join",
        "OneRowRelation",
        "Project",
        "Range",
        "ResolvedHint",
        "SubqueryAlias",
        "Union",
        "UpdateEventTimeWatermarkColumn",
        "View",
        "WithCTE",
    }
)
"""Nodes that give the same rows in the same tasks whenever they get the same."""

_OF_A_STREAM = frozenset(
    {
        "LocalRelation",
        "StreamingDataSourceV2Relation",
        "StreamingDataSourceV2ScanRelation",
        "StreamingExecutionRelation",
        "StreamingRelation",
        "StreamingRelationV2",
        "WriteToMicroBatchDataSource",
        "WriteToMicroBatchDataSourceV1",
    }
)
"""Nodes for which this is true in a query's plan; its sources are looked at apart."""

_TABLES = frozenset(
    {"DataSourceV2Relation", "DataSourceV2ScanRelation", "HiveTableRelation", "LogicalRelation"}
)

_EXACT = frozenset(
    {
        "BitAndAgg",
        "BitOrAgg",
        "BitXorAgg",
        "BoolAnd",
        "BoolOr",
        "Count",
        "CountIf",
        "HyperLogLogPlusPlus",
    }
)
"""Aggregate functions whose result doesn't depend on the order of rows, whatever their type."""

_EXTREMES = frozenset({"Max", "Min"})
"""Their result depends on the order of rows where two values are equal and differ all the same:
0.0 and -0.0, and texts with a collation."""

_BY_EQUALITY = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join"}
)
"""Nodes that put together what is equal. Of floating-point numbers Spark makes one form first."""

_COLLATED = re.compile(r'\bcollate \w|__COLLATIONS|\.Collate"|\.ResolvedCollation"')
"""How a plan's JSON shows that texts have a collation, in which different ones may be equal."""

_TIMES_AS_TEXTS = re.compile(r"[\x00-\x20]*(now|today|yesterday|tomorrow)(?![a-z])", re.IGNORECASE)
"""How a text begins that Spark takes for a time, in some zone, where it is cast to a date or a
timestamp; as other texts they are kept for nothing, which does no harm."""

_OF_USERS = frozenset(
    {
        "ApplyFunctionExpression",
        "HiveGenericUDF",
        "HiveGenericUDTF",
        "HiveSimpleUDF",
        "ScalaUDF",
    }
)
"""Functions in Java and Scala that aren't Spark's own; it calls them deterministic unless their
authors say otherwise."""

_SUMS = frozenset({"Average", "Sum", "TryAverage", "TrySum"})
_SIMPLE = frozenset(
    {
        "Abs",
        "Add",
        "Alias",
        "AttributeReference",
        "CaseWhen",
        "Cast",
        "Coalesce",
        "EqualTo",
        "GreaterThan",
        "GreaterThanOrEqual",
        "If",
        "IsNotNull",
        "IsNull",
        "LessThan",
        "LessThanOrEqual",
        "Literal",
        "Multiply",
        "Subtract",
        "UnaryMinus",
    }
)
"""Expressions that give no type that neither they nor their arguments name."""

_EQUALLY_SIMPLE = _SIMPLE | {
    "Concat",
    "CreateArray",
    "CreateNamedStruct",
    "DateAdd",
    "DateSub",
    "GetArrayItem",
    "GetStructField",
    "Greatest",
    "Least",
    "Length",
    "Lower",
    "StringTrim",
    "Substring",
    "TimeAdd",
    "TruncDate",
    "TruncTimestamp",
    "Upper",
}
"""Those, and others that give no number of floating point that isn't named."""

_TIMES_OF_A_BATCH = frozenset({"CurrentDate", "CurrentTimestamp", "LocalTimestamp", "Now"})
"""In the query's plan they are the time in the batch's entry of Spark's offset log, which a
replay reads again."""

_TIMES = _TIMES_OF_A_BATCH | {"CurrentTime"}

_BEHIND_A_NAME = {
    "aes_encrypt(": "aes_encrypt() draws a random vector",
    "current_time(": "the current time is another one in a replay",
}
"""Functions that are not to be seen any more where each function stands as what it is made of."""

# As this and that version of Spark has it.
_more_arguments: tuple[tuple[bool, ...], ...] = ((False, False), (False,))

_CASES = re.compile(r"\bCASE WHEN\b|\bEND\b")

_ORDERED = "rows of one key come out of a shuffle in another order"


class Determinism:
    """Reads the plans of one run of a query.

    Args:
        execution: Spark's own object of the running query.
    """

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self._of_query: tuple[str | None] | None = None
        self._of_frames: OrderedDict[str, str | None] = OrderedDict()
        self._by_expression: str | None = None

    def why_not(self, batch: DataFrame, frames: Iterable[DataFrame]) -> str | None:
        """Return None when a replay of the batch gives the same rows in the same tasks; otherwise
        why it may not.

        Args:
            batch: what the function of the batch was given.
            frames: what is written.
        """
        if self._of_query is None:
            self._of_query = (self._read(self._query),)
        (reason,) = self._of_query
        return self.why_not_given(batch, frames) if reason is None else reason

    def why_not_given(self, batch: DataFrame, frames: Iterable[DataFrame]) -> str | None:
        """Return the same for a batch that gives the same rows again; see ``why_not``."""
        derived = {id(frame): frame for frame in frames if frame is not batch}
        reasons = (
            self._read(lambda frame=frame: self._frame(batch, frame)) for frame in derived.values()
        )
        return next((reason for reason in reasons if reason is not None), None)

    @staticmethod
    def _read(read: Any) -> str | None:
        try:
            found: str | None = read()
        except Exception as error:  # noqa: BLE001  whatever can't be read isn't trusted
            return f"Spark's plan of it can't be read ({type(error).__name__})"
        return found

    def _query(self) -> str | None:
        plan = self._execution.logicalPlan()
        sources = self._execution.sources()
        for position in range(int(sources.size())):
            source = str(sources.apply(position).getClass().getSimpleName())
            if source not in SOURCES:
                return f"it isn't known whether the source {source} gives the same rows again"
        nodes, reason = self._nodes(plan)
        return (
            reason
            or _reason(nodes, of_stream=True)
            or (None if plan.deterministic() else _not_deterministic(nodes))
        )

    def _frame(self, batch: DataFrame, frame: DataFrame) -> str | None:
        plan = _analyzed(frame)
        if not plan.deterministic():
            # Random seeds are drawn per batch, so the plan looks new each time; one reason is
            # enough.
            if self._by_expression is None:
                nodes, reason = self._nodes(plan)
                self._by_expression = reason or _not_deterministic(nodes)
            return self._by_expression
        # Not remembered: another RDD looks the same.
        foreign = _foreign(plan, _analyzed(batch))
        if foreign is not None:
            return foreign
        text = re.sub(r"#\d+", "#", text_of_plan(plan))
        if text not in self._of_frames:
            nodes, reason = self._nodes(plan)
            self._of_frames[text] = reason or _reason(nodes, of_stream=False)
        self._of_frames.move_to_end(text)
        while len(self._of_frames) > KEPT:
            self._of_frames.popitem(last=False)
        return self._of_frames[text]

    def _nodes(self, plan: Any) -> tuple[list[Mapping[str, Any]], str | None]:
        """Return what the plan's JSON says, each node in front of its children, or none and why
        the plan isn't trusted.

        Spark's JSON has an expression again in each field of another one that isn't just a list
        of its arguments: what a function is made of beside its arguments, the branches of a CASE
        beside those. Nested twenty deep, that fills the driver's memory. So functions are replaced
        by what they are made of, as Spark's optimizer does first, and of CASEs that are too deep no
        JSON is made.
        """
        from pyspark import SparkContext

        text = text_of_plan(plan)
        for name, reason in _BEHIND_A_NAME.items():
            if name in text:
                return [], reason
        jvm: Any = SparkContext._jvm  # noqa: SLF001  Spark offers this in no other way
        replaced = jvm.org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions.apply(plan)
        if _weight(text_of_plan(replaced)) > LONGEST_TEXT:
            return [], "Spark's plan of it is too large or too deep to be read"
        return json.loads(replaced.toJSON()), None


def text_of_plan(plan: Any) -> str:
    """Return the plan as a text with all its columns, of which a plain ``toString`` leaves out
    those after the 25th.
    """
    global _more_arguments  # noqa: PLW0603  asked of Spark once
    for more in _more_arguments:
        with contextlib.suppress(Py4JError):
            text = str(plan.treeString(False, False, 2**31 - 1, *more))  # noqa: FBT003  py4j
            _more_arguments = (more,)
            return text
    raise LookupError("treeString")


def _analyzed(frame: DataFrame) -> Any:
    jvm_frame: Any = frame._jdf  # noqa: SLF001  Spark offers this in no other way
    return jvm_frame.queryExecution().analyzed()


def _foreign(plan: Any, batch: Any) -> str | None:
    """Return a reason when a leaf of the plan is an RDD that isn't the batch."""
    own = int(batch.rdd().id())
    for leaf in leaves_of(plan):
        if str(leaf.getClass().getSimpleName()) == "LogicalRDD" and int(leaf.rdd().id()) != own:
            return "rows come from an RDD, and Spark doesn't say how it was made"
    return None


def _weight(text: str) -> int:
    """Return how long a plan's text is, with each CASE in it counted as often as JSON has it: twice
    for each CASE around it.
    """
    weight, begins = len(text), list[int]()
    for found in _CASES.finditer(text):
        if found[0] != "END":
            begins.append(found.start())
        elif begins:
            begin = begins.pop()
            weight += (found.end() - begin) << min(len(begins), 64)
    # The ends may be missing: a plan's text cuts what is long.
    return weight + sum((len(text) - begin) << min(i, 64) for i, begin in enumerate(begins))


def _not_deterministic(nodes: list[Mapping[str, Any]]) -> str:
    """Return the names of the expressions, as far as JSON shows them, that Spark calls not
    deterministic.
    """
    known = {
        "Rand": "rand()",
        "Randn": "randn()",
        "Uuid": "uuid()",
        "Shuffle": "shuffle()",
        "MonotonicallyIncreasingID": "monotonically_increasing_id()",
        "SparkPartitionID": "spark_partition_id()",
        "InputFileName": "input_file_name()",
        "CollectList": "collect_list()",
        "CollectSet": "collect_set()",
        "First": "first()",
        "Last": "last()",
    }
    found = {known[_name(each)] for node in nodes for each in _inside(node) if _name(each) in known}
    return f"{', '.join(sorted(found)) or 'an expression'} is not deterministic"


def _reason(nodes: list[Mapping[str, Any]], *, of_stream: bool) -> str | None:
    """Return why the plan isn't the same in each run, apart from the word ``deterministic``.

    Args:
        nodes: what ``toJSON`` gave: the plan's nodes, each in front of its children.
        of_stream: it is the query's plan.
    """
    collated = _COLLATED.search(json.dumps(nodes)) is not None
    for position, node in enumerate(nodes):
        found = _of_node(node, nodes[position + 1 :], of_stream=of_stream)
        if found is not None:
            return found
        # Whatever is collated in the plan: which columns a Distinct has isn't to be seen in it.
        if collated and _makes_one_of_equals(node):
            return f"of texts that are equal by their collation any one may stay, and {_ORDERED}"
        if any(_is_time_of_a_made_text(tree) for tree in _all_trees(node)):
            return "a text that is computed first may be cast to another time in a replay"
        for each in _inside(node):
            if ".plans.logical." in each["class"] or ".sql.execution." in each["class"]:
                # Of a subquery; its children are next to it, and looked at in turn.
                found = _of_node(each, [], of_stream=of_stream)
            else:
                found = _of_expression(each, of_stream=of_stream)
            if found is not None:
                return found
    return None


def _of_node(  # noqa: PLR0911
    node: Mapping[str, Any], behind: list[Mapping[str, Any]], *, of_stream: bool
) -> str | None:
    name = _name(node)
    if name in _PASSING or (of_stream and name in _OF_A_STREAM):
        return None
    if name in _TABLES:
        return "a table is read that may change in between"
    if name == "LogicalRDD":
        return "rows come from an RDD, and Spark doesn't say how it was made" if of_stream else None
    if name == "LocalRelation":
        return "rows come from the function itself and not from the batch"
    if name == "Aggregate":
        return _of_aggregate(node)
    if name in {"Deduplicate", "DeduplicateWithinWatermark"}:
        columns = _width(behind)
        every = (
            columns is not None
            and len({key["exprId"]["id"] for key in _inside(node.get("keys")) if "exprId" in key})
            == columns
        )
        return None if every else f"the first row of each key stays, and {_ORDERED}"
    if name in {"Repartition", "RepartitionByExpression"}:
        return _of_repartition(node)
    if name == "Sort":
        return (
            "a global order places rows by a random sample of them" if node.get("global") else None
        )
    return f"a {name} isn't known to give the same rows again"


def _makes_one_of_equals(node: Mapping[str, Any]) -> bool:
    """Return whether it or a subquery in it puts together what is equal."""
    return any(_name(each) in _BY_EQUALITY for each in (node, *_inside(node)))


def _is_time_of_a_made_text(tree: list[Mapping[str, Any]]) -> bool:
    """Return whether a part of a tree casts what may be a text without columns, and is no literal,
    to a time: Spark computes it before it looks for words such as ``now``.
    """
    for position, each in enumerate(tree):
        if _name(each) == "Cast" and str(each.get("dataType")).startswith(("date", "timestamp")):
            below = [_name(part) for part in _arguments(tree, position)]
            # What comes of a column isn't searched for words; the current time is looked at apart.
            if len(below) > 1 and not {"AttributeReference", *_TIMES} & {*below}:
                return True
    return False


def _of_aggregate(node: Mapping[str, Any]) -> str | None:
    # Trees are listed with each expression in front of its arguments.
    for tree in _trees(node.get("aggregateExpressions")):
        for position, each in enumerate(tree):
            if _name(each) != "AggregateExpression":
                continue
            function = tree[position + 1]
            name = _name(function)
            if name in _EXACT:
                continue
            if name not in _SUMS | _EXTREMES:
                return f"the result of {name} may depend on the order of rows"
            arguments = list(_arguments(tree, position + 1))
            # A column or a cast says what comes of it; of anything else, its parts do.
            parts = arguments[:1] if "dataType" in arguments[0] else arguments
            types = {str(part["dataType"]) for part in parts if "dataType" in part}
            known = _EQUALLY_SIMPLE if name in _EXTREMES else _SIMPLE
            exact = all(_name(part) in known for part in parts) and not any(
                floating in kind for kind in types for floating in ("double", "float")
            )
            if name in _EXTREMES:
                if not exact:
                    return f"0.0 and -0.0 are equal, either may be the {name}, and {_ORDERED}"
                continue
            if not exact or (
                name in {"Average", "TryAverage"}
                and not all(kind.startswith("decimal") for kind in types)
            ):
                return f"floating-point sums depend on the order of rows, and {_ORDERED}"
    return None


def _of_repartition(node: Mapping[str, Any]) -> str | None:
    count = node.get("numPartitions", node.get("optNumPartitions"))
    if count == 1:
        return None
    by = [each for tree in _trees(node.get("partitionExpressions")) for each in tree[:1]]
    if by and all(_name(each) != "SortOrder" for each in by):
        return None
    return "rows are spread over tasks without a key"


def _of_expression(each: Mapping[str, Any], *, of_stream: bool) -> str | None:
    name = _name(each)
    if "Python" in name:
        return f"nobody knows what the Python function {each.get('name', name)} does"
    if name in _OF_USERS:
        return f"nobody knows what the function {each.get('udfName', name)} does"
    if name == "AesEncrypt":
        return "aes_encrypt() draws a random vector"
    if name == "Literal" and _TIMES_AS_TEXTS.match(str(each.get("value"))):
        return (
            f"the text {each.get('value')!r} is another time in a replay, where it is cast to one"
        )
    if name in _TIMES and not (of_stream and name in _TIMES_OF_A_BATCH):
        return "the current time is another one in a replay"
    return None


def _width(nodes: list[Mapping[str, Any]]) -> int | None:
    """Return how many columns the first of the nodes gives, where that is easily told."""
    for node in nodes:
        if _name(node) == "Project":
            return sum(1 for _ in _trees(node["projectList"]))
        if "output" in node:
            return sum(1 for _ in _trees(node["output"]))
        if _name(node) not in {"EventTimeWatermark", "Filter", "SubqueryAlias"}:
            return None
    return None


def _name(each: Mapping[str, Any]) -> str:
    return str(each["class"]).rpartition(".")[2]


def _inside(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield whatever has a class inside of a node or a field, and not the node itself."""
    for each in (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    ):
        if isinstance(each, Mapping) and "class" in each:
            yield each
        yield from _inside(each)


def _trees(value: Any) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the expressions of a field, each as the list of its parts."""
    if isinstance(value, list):
        if value and isinstance(value[0], Mapping) and "class" in value[0]:
            yield value
        else:
            for each in value:
                yield from _trees(each)


def _all_trees(value: Any) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the expressions of a node, those within others too, each as the list of its parts."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _all_trees(each)
    elif isinstance(value, list):
        if value and isinstance(value[0], Mapping) and "class" in value[0]:
            yield value
        for each in value:
            yield from _all_trees(each)


def _arguments(tree: list[Mapping[str, Any]], position: int) -> Iterator[Mapping[str, Any]]:
    """Yield all parts below one of a tree's."""
    wanted = int(tree[position]["num-children"])
    while wanted:
        position += 1
        wanted += int(tree[position]["num-children"]) - 1
        yield tree[position]
