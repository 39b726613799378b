"""English words that carry grammar rather than content; the TinyBERT rule leaves them, and negations, alone."""

from __future__ import annotations

ARTICLES = "a an the this that these those"
PRONOUNS = (
    "i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our ours "
    "ourselves they them their theirs themselves who whom whose which what one someone something anyone anything"
)
VERBS = (
    "am is are was were be been being do does did done doing have has had having will would shall should can could may "
    "might must ought"
)
NEGATIONS = "no not nor none never neither nobody nothing nowhere without cannot"
JOINTS = (
    "and or but if then else so because although though while whereas unless until since as than whether both either "
    "of to in on at by for from with about against between into through during before after above below over under up "
    "down out off again further once here there when where why how"
)
DEGREES = "all any each every few more most less least other another some such only own same too very just also even"

STOP_WORDS = frozenset(" ".join((ARTICLES, PRONOUNS, VERBS, NEGATIONS, JOINTS, DEGREES)).split())
