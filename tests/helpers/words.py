"""Find wording to avoid: `python -m tests.helpers.words [PATH ...]` prints file:line: pattern: text.

It checks docstrings, comments, string literals and names in Python files, and prose, list items and table cells in
Markdown. It skips code between backticks, code blocks and the addresses of links. In tests/ it also checks the names of
tests, and skips string literals, which are scripts and expected messages.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import functools
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKED = ("hpc_es", "docs", "README.md", "tests")
CEILINGS = Path(__file__).parent / "words_allowed.json"

PROSE = frozenset({"module", "docstring", "test", "comment", "string", "help", "markdown", "cell"})
STARTS = frozenset({"module", "docstring", "help", "cell"})  # texts that define something with their first words
FILLERS = frozenset(
    {"found", "told", "given", "made", "held", "seen", "each", "place", "begun", "moved", "shown", "luck", "aloud"}
)

UNITS = (
    "generation|step|timestep|second|millisecond|minute|hour|day|job|chunk|rank|node|worker|layer|episode|trial"
    "|evaluation|update|candidate|pair|task|program|core|process|parameter|message|iteration|round|row|repetition"
)
COUNTED = (
    r"bytes|[GMk]i?B|ms|us|s|seconds|milliseconds|minutes|hours|steps|timesteps|episodes|evaluations|generations|lines?"
    r"|rows?|jobs|chunks|pairs|times|once|twice|numbers?|values?|vectors?|files?|calls?|messages|matrix product|product"
    r"|updates?|draws|samples|programs|plays|one|two|three|[\d,.]*\d"
)
OWNERS = ["its", "their", "your", "our", "my", "his", "her", "whose"]


@dataclass(frozen=True)
class Pattern:
    """A wording to avoid, in some kinds of passages, and what to write in its place."""

    name: str
    regex: re.Pattern[str]
    advice: str
    kinds: frozenset[str] = PROSE
    unless_after: re.Pattern[str] = re.compile("(?!)")  # no finding where this is before the match


def _pattern(name: str, regex: str, advice: str, kinds: frozenset[str] = PROSE, unless_after: str = "(?!)") -> Pattern:
    return Pattern(name, re.compile(regex, re.IGNORECASE), advice, kinds, re.compile(unless_after))


# words after which a verb may follow in "Return the <noun> <word> ... <verb>"
_LINKS = (
    "that|which|who|whose|as|where|if|when|so|such|for|of|with|to|in|after|before|at|by|from|because|and|or"
    "|it|they|he|we|you|each|every"
)

PATTERNS = (
    _pattern("so many", r"\bso (?:many|few|often)\b|\bfor so long\b", "'this many', 'N', 'the number of'"),
    _pattern("of which", r"\bof (?:which|whom)\b(?! [\d,]+ )", "a second clause or sentence"),
    _pattern(
        "own",
        r"\bof (?:the user's|a user's|users'|your) own\b|\bone's own\b|(?<![\w-])"
        + "".join(rf"(?<!\b{owner} )" for owner in OWNERS)
        + r"(?<!'s )(?<!s' )own [a-z]",
        "'custom', 'user-defined', or 'your own' before the noun",
    ),
    _pattern(
        "told",
        r"\b(?:told|tells|telling)\b|(?<!and )\btell (?:of|whether|which|how|what|apart|it|them|us)\b",
        "'reported', 'shows', 'determines', 'distinguish'",
    ),
    _pattern("is said", r"\b(?:is|are|was|were|be|been|being) said\b|\bsays? otherwise\b", "'reported', 'stated'"),
    _pattern(
        "as ... has it",
        r"(?<!many )(?<!much )(?<!same )(?<!such )\bas (?!if\b|soon\b|long\b|well\b|far\b|many\b|much\b|often\b)"
        r"(?:[\w'-]+ ){1,5}?(?:(?:has|have|had)(?: it| them| one)?|(?:does|do|did) (?:it|them|one|so))(?=$|[.,;:)])",
        "'like', 'as in', or a full clause",
        unless_after=r"\bas (?:many|much|few|long|often|far|well)\b[^.;:]*$",
    ),
    _pattern(
        "archaic word",
        r"\b(?:where(?:of|upon|with|fore)|there(?:of|in|upon)|here(?:of|in)|lest|upon|anew|nay|hitherto|whence|henceforth"
        r"|albeit|shall|ere|betimes|aught|naught|for ever|nobody|what else|nought|amongst|whilst|thrice|stead)\b",
        "its plain equivalent",
    ),
    _pattern(
        "inversion",
        r"(?:(?:^|[.] )(?-i:Of)|[;:] of) (?:an?|the|all|each|those|these|several|two|both|such|it|them|its|every)"
        r" [^.;:]*"
        r"|\bas (?:are|is|do|does|did|has|have|was|were) (?:the|an?|its|those|all|other|every)\b"
        r"|\bother than there\b",
        "subject, verb, object",
    ),
    _pattern(
        "is to be", r"\b(?:is|are|was|were) to (?:be|have|come|go|run|stand|say)\b", "'must be', 'will be', 'should be'"
    ),
    _pattern("lets ... be", r"\blets? (?:[\w-]+ ){1,2}be\b", "'allows', or an active verb"),
    _pattern(
        "of none",
        r"\b(?-i:None|True|False|NaN|nothing|[A-Z]\w*Error|[Zz]ero) "
        r"of (?:none|no|one|an?|such|what|any|some|every|those)\b",
        "'if there is none', 'raises ... if', 'for'",
    ),
    _pattern(
        "error where",
        r"\b(?-i:[A-Z]\w*Error|or None),? where\b"
        r"|\bwhere (?:there (?:is|are) (?:none|no)\b|none (?:is|are)\b|it has none\b)",
        "'if'",
    ),
    _pattern(
        "where for if",
        r"\bwhere (?:it|there|one) (?:is|are|was|were|has|have|can|may|must|does|do|cannot)\b(?! (?:none|no)\b)",
        "'if'",
    ),
    _pattern("bare error", r"; (?-i:[A-Z]\w*Error)(?=\.|$|,? and\b)", "'Raise XError if ...'"),
    _pattern(
        "is no",
        r"(?<!there )\b(?:is|are|was|be) no "
        r"(?!longer|more|less|other|better|worse|later|earlier|greater|larger|smaller)[a-z]",
        "'is not a'",
    ),
    _pattern(
        "per unit",
        rf"(?<![\w.-])(?:{COUNTED})(?: (?:each|more|longer))? an? (?:{UNITS})\b(?!'s)(?! (?:of|is|has|was|that)\b)",
        "'per'",
    ),
    _pattern("besides", r"\bbesides\b", "'in addition to', 'other than', 'also'"),
    _pattern("but", r"\bbut for\b|\b(?:every|any|everything|none|anyone) but\b|\bno \w+ but\b", "'except', 'only'"),
    _pattern(
        "such as have",
        r"\b(?:only|and|but|or|is|are|by|for|to) such as\b|\bsuch as (?:have|are|is|has|do|does|can|may)\b",
        "'those that'",
    ),
    _pattern(
        "foreign",
        r"\bforeign (?:kinds?|code|environments?|polic|tasks?|modules?|algorithms?|ones?|objects?|class)",
        "'custom' or 'user-defined'",
    ),
    _pattern(
        "bits",
        r"\bsame bits\b|\bto the (?:last )?bits?\b|\bbits (?:are|do|stay|change|differ|of it)\b"
        r"|\b(?:equal|other|their) bits\b",
        "'bit-identical', 'identical results'",
    ),
    _pattern(
        "go on",
        r"\b(?:go|goes|going|gone|went) on"
        r"(?= (?:with|after|as|where|from|in|at|until|without|on|to|when|if)\b|[.,;:)]|$)"
        r"|\bcarr(?:y|ies|ied) on\b|\bon through\b",
        "'continue', 'resume'",
    ),
    _pattern(
        "write down",
        r"\b(?:takes?|took|taken|taking|writes?|written|wrote|writing|puts?|set) down\b",
        "'record', 'write'",
    ),
    _pattern(
        "makes of", r"\bwhat (?:[\w'.-]+ ){1,5}(?:makes?|made) of (?!which)\w", "'the result of', 'how ... is parsed'"
    ),
    _pattern(
        "ours",
        r"\bof (?:ours|yours|theirs)\b|\b(?:is|are|be) (?:ours|theirs)\b"
        r"|, for (?:it|they|there|this) (?:is|are|has|have|does|do|was|can|may)\b",
        "'built-in', 'user', 'because'",
    ),
    _pattern(
        "again and again",
        r"\bagain and again\b|\bin vain\b|\bas ever\b|\bevermore\b|\bever so\b|\bonce and for all\b|\bby and by\b",
        "'repeatedly', 'without success', 'as usual'",
    ),
    _pattern(
        "figure of speech",
        r"\b(?:aloud|dear|dearer|voice|the door|last words|at the mercy|alone knows|comes? along|came along)\b",
        "a literal statement",
    ),
    _pattern(
        "others than", r"\bothers? than (?:there|here)\b|\bothers than\b|\belse than\b", "'except', 'other ... than'"
    ),
    _pattern("definition begins with 'of'", r"^[Oo]f (?!course)", "a noun phrase", STARTS),
    _pattern(
        "list item begins with 'of'",
        r"^(?:[-*]|\d+\.)? ?(?:`_+`|\*\*[^*]+\*\*)(?:(?:,| and| or) (?:`_+`|\*\*[^*]+\*\*))*: of ",
        "a noun phrase",
        frozenset({"markdown"}),
    ),
    _pattern(
        "definition is a fragment",
        r"^(?:What|Which|Whose|Who|And|But|Or|As) |^"
        r"(?:How|Where|Why|When|From|By|In|With|Without|Those|Their|Nothing|After|Before|Until|Over|At|On) "
        r"(?!\w+ing\b)",
        "a noun phrase or an imperative sentence",
        frozenset({"docstring"}),
    ),
    _pattern(
        "module is a fragment", r"^(?:What|Whether|Which|Whose|Who|And|But) ", "a noun phrase", frozenset({"module"})
    ),
    _pattern(
        "help is a fragment",
        r"^(?:what|how|which|where|why|who|when|whose|as|and|but|or|from|by|with (?!-)|times|so|until"
        r"|those|their|its|it|they)\b",
        "a noun phrase with unit and default",
        frozenset({"help"}),
    ),
    _pattern(
        "Return what",
        r"^(?:Return|Yield)s? (?:what|where|how (?:much|many|long|often))\b",
        "'Return the <noun>'",
        frozenset({"docstring"}),
    ),
    _pattern(
        "Return before a verb",
        r"^(?:Return|Yield)s? (?:is|are|has|have|does|do|can|may|must|will|to|of|from|in|by|with)\b"
        r"|^(?:Return|Yield)s? (?:the|an?) "
        r"(?:compute|make|take|give|get|read|write|build|create|apply|evaluate|draw|be|is|are)\b"
        rf"|^(?:Return|Yield)s? (?:the|an?|some|all|this|these)(?: (?!(?:{_LINKS})\b)[\w'-]+){{1,4}}"
        r" (?:is|are|was|were|has|have|does|do|can|may|must|will|part by)\b",
        "'Return the <noun>', 'Return whether', or an imperative verb",
        frozenset({"docstring"}),
    ),
)
REPEATS = "docstring repeats the name"
FILLER = "filler name"
TEST_NAME = "name of a test"  # write the unit and its behaviour

AVOIDED_IN_TEST_NAMES = re.compile(
    r"^(?:an?|the|it|its|what|whatever|who|where|when|which|of)_"
    r"|(?:^|_)(?:told|tells_(?:of|it|which|how|whether|what)|carr(?:y|ies)_on|go(?:es)?_on|gone_on|anew|ones_own"
    r"|same_bits|other_bits|no_bit|nobody|whatever|mistakes?|in_vain|begun|aloud|mended"
    r"|ours|made|given|seen|luck|says|said|what|noticed|leaves?_nothing|comes?_back|come_to|as_ever)(?:_|$)"
)

# (file, as a glob; pattern; a regular expression that the sentence contains; why it may stay)
EXCEPTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("docs/*.md", "archaic word", "echo-thrice", "name of a task of Abolafia et al. 2018"),
)


@dataclass(frozen=True)
class Finding:
    """An occurrence of a wording to avoid."""

    file: str
    line: int
    pattern: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.pattern}: {self.text}"


class Passage:
    """A text on one line, whatever its line breaks were, that knows the line of each of its characters."""

    def __init__(self, kind: str, lines: Iterable[tuple[int, str]]) -> None:
        self.kind = kind
        self._starts: list[int] = []
        self._numbers: list[int] = []
        parts: list[str] = []
        length = 0
        for number, line in lines:
            if words := " ".join(line.split()):
                self._starts.append(length)
                self._numbers.append(number)
                parts.append(words)
                length += len(words) + 1
        self.text = re.sub(r"`[^`]+`", lambda code: f"`{'_' * (len(code[0]) - 2)}`", " ".join(parts))
        self.original = " ".join(parts)

    def line(self, offset: int) -> int:
        """Return the line of the character at an offset."""
        return self._numbers[bisect.bisect_right(self._starts, offset) - 1]

    def around(self, start: int, end: int, margin: int = 40) -> str:
        """Return the match with some text before and after it."""
        return self.original[max(0, start - margin) : end + margin].strip()


def findings(file: Path) -> list[Finding]:
    """Return the findings of a .py or .md file, sorted by line, without the exceptions."""
    text = file.read_text(encoding="utf-8")
    name = file.resolve().relative_to(ROOT).as_posix() if file.resolve().is_relative_to(ROOT) else str(file)
    result: list[Finding] = []
    passages: Iterable[Passage] = _markdown(text)
    if file.suffix == ".py":
        tree = ast.parse(text)
        passages = [*_comments(text), *_strings(tree, text, literals=not name.startswith("tests/"))]
        result += [Finding(name, line, FILLER, identifier) for line, identifier in filler_names(tree)]
        result += [Finding(name, line, REPEATS, docstring) for line, docstring in repeating_docstrings(tree)]
        result += [Finding(name, line, TEST_NAME, identifier) for line, identifier in names_of_tests(tree)]
    for passage in passages:
        for pattern in PATTERNS:
            if passage.kind in pattern.kinds:
                for match in pattern.regex.finditer(passage.text):
                    if pattern.unless_after.search(passage.text[: match.start()]):
                        continue
                    around = passage.around(*match.span())
                    result.append(Finding(name, passage.line(match.start()), pattern.name, around))
    return sorted((one for one in result if not is_excepted(one)), key=lambda one: (one.line, one.pattern))


def is_excepted(finding: Finding) -> bool:
    """Return whether EXCEPTIONS allows this finding."""
    return any(
        Path(finding.file).match(glob) and finding.pattern == pattern and re.search(regex, finding.text)
        for glob, pattern, regex, _ in EXCEPTIONS
    )


def files_under(paths: Sequence[str | Path]) -> list[Path]:
    """Return the .py and .md files at or under some paths."""
    result: set[Path] = set()
    for path in map(Path, paths):
        result |= {path} if path.is_file() else {*path.rglob("*.py"), *path.rglob("*.md")}
    return sorted(result)


@functools.lru_cache(maxsize=1)
def _nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def filler_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) for each variable, argument, attribute, function or class with a filler as its name.

    Names that are imported from packages, such as `hypothesis.given`, are allowed.
    """
    imports = [alias for node in _nodes(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    imported = {alias.asname or alias.name for alias in imports}
    for node in _nodes(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        if name.strip("_").lower() in FILLERS and name not in imported:
            yield node.lineno, name


def names_of_tests(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) for each test whose name has an article at its start or a word to avoid."""
    for node in _nodes(tree):
        name = node.name if isinstance(node, ast.FunctionDef) else ""
        if name.startswith("test_") and AVOIDED_IN_TEST_NAMES.search(name.removeprefix("test_")):
            yield node.lineno, name


_EMPTY_WORDS = (
    "return yield the a an of is are be it its this that these those from for to in by with and or as "
    "do make get give take has have all one some here there on at new whether"
)


def _stems(text: str) -> set[str]:
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", text)
    return {re.sub(r"(?:ations?|ions?|ings?|ed|es|ers?|s|e)$", "", word.lower()) for word in words} - {""}


def repeating_docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, docstring) for each one-sentence docstring with the words of the name, class and arguments only."""
    for owner in _nodes(tree):
        for node in getattr(owner, "body", ()) if isinstance(owner, ast.mod | ast.stmt) else ():
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            docstring = ast.get_docstring(node)
            if docstring is None or re.search(r"[.;:]\s|\n\n|[\[|=<>*^`]", docstring):
                continue
            known = _stems(node.name) | _stems(_EMPTY_WORDS)
            if isinstance(owner, ast.ClassDef):
                known |= _stems(owner.name)
            if not isinstance(node, ast.ClassDef):
                known |= {stem for argument in node.args.args for stem in _stems(argument.arg)}
            if _stems(docstring) <= known:
                yield node.body[0].lineno, " ".join(docstring.split())


def _comments(text: str) -> Iterator[Passage]:
    """Yield the comments; whole lines of comment that follow one another are one passage."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        number = token.start[0]
        continues = block and number == block[-1][0] + 1 and token.line.lstrip().startswith("#")
        if block and not continues:
            yield Passage("comment", block)
            block = []
        block.append((number, token.string.lstrip("#: ")))
    if block:
        yield Passage("comment", block)


_HELP_CALLS = frozenset({"option", "Field"})
_HELP_KEYWORDS = frozenset({"help", "description", "epilog"})


def _strings(tree: ast.Module, text: str, literals: bool) -> Iterator[Passage]:
    """Yield docstrings and, if wanted, help texts and other string literals, of two words or more."""
    source = text.splitlines()
    first = getattr(tree.body[0], "value", None) if tree.body else None
    docstrings, helps, tests = set(), set(), set()
    for node in _nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            tests.add(getattr(node.body[0], "value", None))  # its docstring may be a calculation
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for statement in body:  # the docstrings of attributes, too
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    docstrings.add(statement.value)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            helps |= {node.args[0]} if name in _HELP_CALLS and node.args else set()
            helps |= {keyword.value for keyword in node.keywords if keyword.arg in _HELP_KEYWORDS}

    def visit(node: ast.AST) -> Iterator[Passage]:
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield from passage(node, "".join(parts))
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    yield from visit(part.value)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield from passage(node, node.value)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child)

    def passage(node: ast.expr, value: str) -> Iterator[Passage]:
        if len(value.split()) < 2 or not (literals or node in docstrings):
            return
        if node in docstrings:
            kind = "module" if node is first else "test" if node in tests else "docstring"
            yield Passage(kind, enumerate(value.splitlines(), node.lineno))
        else:
            yield Passage("help" if node in helps else "string", _literal_lines(value, source, node))

    yield from visit(tree)


def _literal_lines(value: str, source: Sequence[str], node: ast.expr) -> Iterator[tuple[int, str]]:
    """Yield a literal's words, each with its line: that of the next piece of source which contains the word."""
    number, last = node.lineno, node.end_lineno or node.lineno
    words = value.split()
    for index, word in enumerate(words):
        if word not in source[number - 1] or (number < last and index and _starts_line(words[index:], source[number])):
            number = min(number + 1, last)
        yield number, word


def _starts_line(words: Sequence[str], line: str) -> bool:
    content = line.strip().lstrip("rf\"'(").split()
    return bool(content) and len(words) > 1 and content[:2] == list(words[:2])


def _markdown(text: str) -> Iterator[Passage]:
    """Yield paragraphs, list items, headings and table cells; no code blocks and comments."""
    text = re.sub(r"<!--.*?-->", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    block: list[tuple[int, str]] = []
    in_fence = in_list = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        fence = stripped.startswith(("```", "~~~"))
        item = bool(re.match(r"(?:[-*+]|\d+\.) |[#>!]|: ", stripped))
        indented = line.startswith("    ") and not in_list and not block
        if fence or in_fence or not stripped or stripped.startswith("|") or item or indented:
            if block:
                yield Passage("markdown", block)
            block = []
        if fence:
            in_fence = not in_fence
        elif in_fence or indented or not stripped:
            continue
        elif stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                if cell.strip() and not re.fullmatch(r"[\s:-]+", cell):
                    yield Passage("cell", [(number, cell)])
        else:
            block.append((number, line))
        if stripped and not line.startswith(" "):
            in_list = item
    if block:
        yield Passage("markdown", block)


def counts(everything: Iterable[Finding], folders: Iterable[str]) -> dict[str, int]:
    """Return the number of findings at or under each folder or file."""
    files = Counter(finding.file for finding in everything)
    return {
        folder: sum(count for file, count in files.items() if file == folder or file.startswith(f"{folder}/"))
        for folder in folders
    }


def lower_ceilings() -> None:
    """Lower each ceiling to the present number of findings, whichever paths a command names."""
    ceilings: dict[str, int] = json.loads(CEILINGS.read_text(encoding="utf-8"))
    files = files_under([ROOT / path for path in CHECKED])
    now = counts([finding for file in files for finding in findings(file)], ceilings)
    lowered = {name: min(ceiling, now[name]) for name, ceiling in ceilings.items() if (ROOT / name).exists()}
    CEILINGS.write_text(json.dumps(lowered, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Print the findings, or lower the ceilings of tests/test_words.py to today's numbers."""
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.words", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files and folders; default: hpc_es, docs, README.md and tests")
    parser.add_argument("--only", metavar="PATTERN", help="findings whose pattern contains this text")
    parser.add_argument("--no-names", action="store_true", help="leave out filler names")
    parser.add_argument("--summary", action="store_true", help="numbers by pattern and by file")
    parser.add_argument("--patterns", action="store_true", help="list the patterns with what to write in their place")
    parser.add_argument("--lower", action="store_true", help="lower the committed ceilings to the present numbers")
    options = parser.parse_args()
    if options.patterns:
        for pattern in PATTERNS:
            print(f"{pattern.name}: write {pattern.advice}")
        return
    if options.lower:
        lower_ceilings()
        return
    everything = [
        finding
        for file in files_under(options.paths or [ROOT / path for path in CHECKED])
        for finding in findings(file)
        if (options.only or "") in finding.pattern and not (options.no_names and finding.pattern == FILLER)
    ]
    if options.summary:
        for title, key in (("pattern", "pattern"), ("file", "file")):
            print(f"--- by {title}")
            for name, count in Counter(getattr(finding, key) for finding in everything).most_common():
                print(f"{count:5d}  {name}")
    else:
        print(*everything, sep="\n")
        print(f"{len(everything)} findings")


if __name__ == "__main__":
    main()
