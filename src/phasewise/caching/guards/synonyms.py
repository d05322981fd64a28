"""Words that mean the same wherever they stand in a question. Few: what is doubtful is left to the bound."""

from __future__ import annotations

from phasewise.caching.stems import stem_of
from phasewise.caching.vocabulary import families

_GROUPS = """
think believe according reckon|big large|buy purchase|begin start commence|end finish complete
quick fast rapid|fix repair|remove delete erase|picture photo photograph|car automobile|movie film
phone telephone
tv television|doctor physician|lawyer attorney|adviser advisor|kid child|mom mother|dad father
grandma grandmother|grandpa grandfather|sick ill|glad happy
hard difficult|easy simple|smart intelligent clever|rich wealthy|afraid scared
incorrect wrong|create make|help assist aid|show display
choose select pick|need require|happen occur|allow permit
use utilize utilise|speak talk|signup register|login signin
app application|info information|vs versus|difference distinction
usa america|uk britain|bike bicycle|plane airplane aeroplane aircraft
fridge refrigerator|maths math mathematics|ad advert advertisement|lab laboratory|exam examination
pc computer|config configuration|db database|repo repository|env environment|docs documentation|k8s kubernetes
js javascript|ts typescript|py python|postgres postgresql|ok okay
sofa couch|petrol gasoline|trash rubbish garbage
"""


_USUAL = {stem_of(name): stem_of(usual) for name, usual in families(_GROUPS).items()}


def usual_name(stem: str) -> str:
    """The one stem that stands for all that mean the same."""
    return _USUAL.get(stem, stem)
