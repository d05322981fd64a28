"""The questions that guards and bound are judged by. Whoever writes or tunes these does not read them."""

from __future__ import annotations

from .grammar import Kind, frame, pool
from .library import Library
from .manners import Manners

MANNERS = Manners(
    asking=(
        "Any idea {}?",
        "Could somebody here say {}?",
        "I need to find out {}.",
        "I'm trying to work out {}.",
        "Would you mind telling me {}?",
        "Help me figure out {}.",
        "Let me know {}, if you can.",
        "My question is {}.",
    ),
    greetings=(
        "Good evening.",
        "Sorry to bother you.",
        "Hi there,",
        "One more thing:",
        "Greetings!",
        "Dear team,",
    ),
    thanks=("Many thanks.", "Thanks in advance!", "Cheers.", "Much appreciated."),
    fillers=("possibly", "perhaps", "ever", "best"),
)

PEOPLE = pool(
    Kind.NAME,
    "Ingrid Halvorsen|Tobias Lindqvist|Priya Raghavan|Kwame Mensah|Yuki Tanabe|Mateus Carvalho|Noor Haddad|"
    "Bronwen Pryce|Dmitri Sokolov|Leilani Kahale|Oisin Brannigan|Zsofia Nagy|Thabo Dlamini|Eleni Papadaki",
)
DOCTORS = pool(
    Kind.NAME,
    "Halvorsen|Lindqvist|Raghavan|Mensah|Tanabe|Carvalho|Pryce|Sokolov|Kahale|Brannigan|Nagy|Dlamini",
)
PLACES = pool(
    Kind.NAME,
    "Reykjavik|Ljubljana|Valparaiso|Osaka|Nairobi|Cusco|Tbilisi|Hobart|Bergen|Antwerp|Marrakesh|Halifax|"
    "Gdansk|Tromso|Kazan|Porto",
)
GOODS = pool(
    Kind.NAME,
    "teapot|hammock|drill|tripod|scooter|duvet|kayak|aquarium|typewriter|projector|bookshelf|trampoline|"
    "sewing machine|telescope",
)
GADGETS = pool(
    Kind.NAME,
    "Fairphone 4|Xperia 5|Framework 13|Garmin Fenix|GoPro Fusion|Steam Deck|Roomba|Zenfone|Bose Soundlink|"
    "Nest Hub|Remarkable 2|Kobo Libra",
)
SEASONS = pool(
    Kind.TIME,
    "at Diwali|at Purim|during Songkran|in midsummer|in the rainy season|during carnival|"
    "during the harvest|during the regatta",
)
MONTHS = pool(
    Kind.TIME, "January|February|March|April|May|June|July|August|September|October|November|December"
)
FEW = pool(Kind.NUMBER, "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve")
COUNTS = pool(Kind.NUMBER, "13|14|16|17|18|19|21|22|24|26|27|28|33|36|45|48|55|60|65|80|90")
SUMS = pool(Kind.NUMBER, "110|120|135|160|175|180|220|240|260|300|325|350|420|480|640|750|880|960")
MANY = pool(Kind.NUMBER, "|".join(str(count) for count in range(61, 160)))
TONGUES = pool(
    Kind.TARGET, "Yoruba|Maltese|Breton|Basque|Faroese|Estonian|Hausa|Quechua|Mongolian|Latvian|Amharic|Zulu"
)
CODE = pool(Kind.TARGET, "Smalltalk|Ada|Forth|Racket|OCaml|Idris|Crystal|Dart|Zig|Nim|Eiffel|Prolog")
PLATFORMS = pool(Kind.TARGET, "Ansible|Terraform|Jenkins|Bazel|Gradle|Nomad|Vagrant|Helm|Buildah|Puppet")

SUPPORT = (
    frame(
        "track",
        "support",
        """
        Where is [the parcel|the shipment] with the {goods} for {person} [now|right now|at the moment]?
        [Track|Locate|Trace] the [parcel|shipment] with the {goods} that is on its way to {person}.
        I am waiting for a {goods} addressed to {person}. Where is the [parcel|shipment] at the moment?
        where the [parcel|shipment] containing the {goods} for {person} is [now|right now|at the moment]
        What is the whereabouts of the {goods} sent to {person}?
        """,
        goods=GOODS,
        person=PEOPLE,
    ),
    frame(
        "parcel_limit",
        "support",
        """
        How heavy may a {what} to {place} be when it holds a {goods}?
        What weight limit applies to a {what} with a {goods} going to {place}?
        how heavy a {what} to {place} may be with a {goods} [inside|in it]
        I am sending a {goods} to {place}. How heavy may the {what} be?
        """,
        what=pool(Kind.SENSE, "parcel|shipment"),
        place=PLACES,
        goods=GOODS,
    ),
    frame(
        "assemble",
        "support",
        """
        Which tools do I need to {verb} the {mod} {goods}?
        what tools are [needed|necessary|required] to {verb} the {mod} {goods}
        To {verb} the {mod} {goods}, which tools [do I need|are necessary]?
        I have to {verb} the {mod} {goods}. Which tools should I [get|fetch|have ready]?
        """,
        verb=pool(Kind.ANTONYM, "hoist|topple; bolt|unbolt; varnish|sand; screw|unscrew; solder|desolder"),
        mod=pool(Kind.MODIFIER, "|foldable|wooden|refurbished|child-sized|waterproof"),
        goods=GOODS,
    ),
    frame(
        "pickup",
        "support",
        """
        {wh} can {person} [collect|pick up|fetch] the {goods} that was ordered {season}?
        {wh} {person} can [collect|pick up|fetch] the {goods} ordered {season}
        The {goods} ordered {season} is for {person}. {wh} can it be [collected|picked up|fetched]?
        {wh} is it possible for {person} to [collect|pick up] the {goods} from the order placed {season}?
        """,
        wh=pool(Kind.QUESTION_WORD, "when|where|how"),
        person=PEOPLE,
        goods=GOODS,
        season=SEASONS,
    ),
    frame(
        "complaint",
        "support",
        """
        Did {a} [complain|file a complaint] about {b} over the {goods}?
        Was a complaint about {b} [filed|lodged|made] by {a} over the {goods}?
        whether {a} [filed|lodged|made] a complaint against {b} because of the {goods}
        Concerning the {goods}, is it {a} who [complained|filed a complaint] about {b}?
        """,
        swap=("a", "b"),
        a=PEOPLE,
        b=PEOPLE,
        goods=GOODS,
    ),
    frame(
        "helpdesk",
        "support",
        """
        How [do|can] I [open|raise|file] case {n} with the {desk} about my {gadget}?
        how [one opens|to open|to raise] case {n} about a {gadget} with the {desk}
        My {gadget} is case {n}. How is it [opened|raised|filed] with the {desk}?
        What do I [write|enter|say] so that the {desk} takes case {n} for my {gadget}?
        """,
        desk=pool(Kind.TURNED, "helpdesk|service desk"),
        n=MANY,
        gadget=GADGETS,
    ),
)

BILLING = (
    frame(
        "instalments",
        "billing",
        """
        Can the {goods} for {sum} {unit} be paid in {n} instalments?
        [May|Can] I pay for the {goods}, which is {sum} {unit}, in {n} instalments?
        whether {n} instalments are [possible|accepted|fine] for a {goods} of {sum} {unit}
        The {goods} costs {sum} {unit}. Would {n} instalments be [possible|accepted|okay]?
        """,
        goods=GOODS,
        sum=SUMS,
        unit=pool(Kind.UNIT, "zloty|forint|ringgit|shekels|krone|baht|lempira|dirhams"),
        n=FEW,
    ),
    frame(
        "billed_twice",
        "billing",
        """
        Why was {person} [billed|invoiced|debited] {sum} {unit} for the {mod} {goods}?
        why {person} was [billed|invoiced|debited] {sum} {unit} for the {mod} {goods}
        {person} sees {sum} {unit} on the account for the {mod} {goods}. What is the reason?
        What is the reason that {sum} {unit} were taken from {person} for the {mod} {goods}?
        """,
        person=PEOPLE,
        sum=SUMS,
        unit=pool(Kind.UNIT, "zloty|forint|ringgit|shekels|krone|baht|lempira|dirhams"),
        mod=pool(Kind.MODIFIER, "|foldable|wooden|refurbished|child-sized|waterproof"),
        goods=GOODS,
    ),
    frame(
        "rate",
        "billing",
        """
        What does the {tariff} tariff in {place} cost {season}?
        How [expensive|pricey|dear] is the {tariff} tariff in {place} {season}?
        how much one [pays|is charged] on the {tariff} tariff in {place} {season}
        {season}, what is the rate of the {tariff} tariff in {place}?
        """,
        tariff=pool(
            Kind.ANTONYM, "prepaid|postpaid; landline|mobile; fibre|satellite; gross|net; island|mainland"
        ),
        place=PLACES,
        season=SEASONS,
    ),
    frame(
        "vat",
        "billing",
        """
        Is the price of the {goods} in {place} quoted {vat} tax?
        whether the {goods} in {place} is [priced|quoted|listed] {vat} tax
        In {place}, does the [tag|label|list] show the {goods} {vat} tax?
        The {goods} in {place} has a price tag. Is that {vat} tax?
        """,
        goods=GOODS,
        place=PLACES,
        vat=pool(Kind.NEGATION, "inclusive of|net of"),
    ),
    frame(
        "lend",
        "billing",
        """
        Has {a} [lent|loaned] {b} {sum} {unit}?
        Were {sum} {unit} [lent|loaned] to {b} by {a}?
        whether {b} [borrowed|got a loan of] {sum} {unit} from {a}
        Did {b} receive {sum} {unit} as a loan from {a}?
        """,
        swap=("a", "b"),
        a=PEOPLE,
        b=PEOPLE,
        sum=SUMS,
        unit=pool(Kind.UNIT, "zloty|forint|ringgit|shekels|krone|baht"),
    ),
    frame(
        "rewards",
        "billing",
        """
        How many points does {n} stays put in the {card} in {place}?
        how many points one [gets|earns|collects] in the {card} with {n} stays in {place}
        With {n} stays in {place}, how many points are [added|credited] in the {card}?
        I have {n} stays in {place}. What does that [give|earn|yield] in points in the {card}?
        """,
        card=pool(Kind.TURNED, "loyalty scheme|bonus scheme"),
        n=MANY,
        place=PLACES,
    ),
    frame(
        "discounts",
        "billing",
        """
        Do {q} of the {tier} members get a discount on the {goods}?
        whether {q} of the {tier} members [get|receive|enjoy] a discount on the {goods}
        Is there a discount on the {goods} for {q} of the {tier} members?
        On the {goods}, are {q} of the {tier} members [given|granted|offered] a discount?
        """,
        q=pool(Kind.QUANTIFIER, "all|a handful|the bulk|none|half|a third|more than ten|at most ten"),
        tier=pool(
            Kind.MODIFIER, "platinum|retired platinum|honorary platinum|bronze|retired bronze|honorary bronze"
        ),
        goods=GOODS,
    ),
)

COOKING = (
    frame(
        "roast",
        "cooking",
        """
        For how long [must|do] {n} {food} be {done} {where}?
        How many minutes do {n} {food} need to be {done} {where}?
        how much time it takes until {n} {food} are {done} {where}
        I want {n} {food} {done} {where}. What is the [time|duration] for that?
        """,
        n=FEW,
        food=pool(
            Kind.NAME, "parsnips|quails|aubergines|turnips|scallops|figs|leeks|radishes|plantains|chestnuts"
        ),
        done=pool(Kind.ANTONYM, "braised|marinated; brined|rinsed; smoked|steamed; roasted|poached"),
        where=pool(Kind.MODIFIER, "|in foil|on charcoal|in a clay pot|under a grill"),
    ),
    frame(
        "measure",
        "cooking",
        """
        How many {to} are in {n} {unit} of {what}?
        What do {n} {unit} of {what} come to in {to}?
        how many {to} make {n} {unit} of {what}
        {n} {unit} of {what}: how much is that, [measured|expressed|given] in {to}?
        """,
        to=pool(Kind.UNIT, "thimbles|ladles|jugs|beakers"),
        n=COUNTS,
        unit=pool(Kind.UNIT, "firkins|gills|drams|bushels|pecks|decilitres"),
        what=pool(Kind.NAME, "molasses|semolina|buttermilk|tahini|lentils|quinoa|polenta|tapioca"),
    ),
    frame(
        "swap_spice",
        "cooking",
        """
        May {a} [replace|stand in for] {b} in a {dish}?
        Can {b} be [replaced|substituted] by {a} in a {dish}?
        whether {a} would [do|work] where a {dish} calls for {b}
        My {dish} calls for {b}. Would {a} [do|work|be fine] in its place?
        """,
        swap=("a", "b"),
        a=pool(Kind.NAME, "cumin|saffron|tarragon|turmeric|sumac|fennel|cardamom|marjoram|nutmeg|paprika"),
        b=pool(Kind.NAME, "cumin|saffron|tarragon|turmeric|sumac|fennel|cardamom|marjoram|nutmeg|paprika"),
        dish=pool(Kind.TARGET, "goulash|risotto|chutney|moussaka|bisque|stew|tagine|frittata|casserole"),
    ),
    frame(
        "diet",
        "cooking",
        """
        Which {dish} recipes from {place} {has} {what}?
        what {dish} recipes from {place} {has} {what}
        From {place}, which recipes for {dish} {has} {what}?
        [List|Name|Give me] the {dish} recipes from {place} that {has} {what}.
        """,
        dish=pool(Kind.TARGET, "goulash|risotto|chutney|moussaka|bisque|stew|tagine|frittata|casserole"),
        place=PLACES,
        has=pool(Kind.NEGATION, "contain|omit"),
        what=pool(Kind.NAME, "gluten|peanuts|shellfish|celery|mustard|lactose|sesame|alcohol"),
    ),
    frame(
        "leftovers",
        "cooking",
        """
        How long does {mod} {dish} [keep|last] {order} it is [opened|unsealed] {place}?
        how long {mod} {dish} [keeps|lasts] {order} it is [opened|unsealed] {place}
        {place}, for how long will {mod} {dish} [keep|last|stay good] {order} it is opened?
        """,
        mod=pool(Kind.MODIFIER, "|homemade|tinned|organic|leftover|store-bought"),
        dish=pool(Kind.TARGET, "goulash|risotto|chutney|moussaka|bisque|stew|tagine|frittata|casserole"),
        order=pool(Kind.TIME, "before|after"),
        place=pool(Kind.NAME, "in a cellar|in a pantry|on a balcony|in a hamper|on a boat|in a tent"),
    ),
    frame(
        "portions",
        "cooking",
        """
        Do {q} of the {n} guests from {place} eat {food}?
        whether {q} of the {n} guests from {place} eat {food}
        Of the {n} guests from {place}, do {q} eat {food}?
        {n} guests come from {place}. Is {food} eaten by {q} of them?
        """,
        q=pool(Kind.QUANTIFIER, "all|a handful|the bulk|none|half|a third|more than ten|at most ten"),
        n=COUNTS,
        place=PLACES,
        food=pool(
            Kind.NAME, "parsnips|quails|aubergines|turnips|scallops|figs|leeks|radishes|plantains|chestnuts"
        ),
    ),
)

TRAVEL = (
    frame(
        "ferry",
        "travel",
        """
        When does the {ferry} ferry [leave|depart|sail] from {a} to {b} {season}?
        At what time is the departure of the {ferry} ferry from {a} to {b} {season}?
        when the {ferry} ferry [leaves|departs|sails] from {a} for {b} {season}
        {season}, at what hour does the {ferry} ferry [leave|depart] {a} for {b}?
        I take the {ferry} ferry from {a} to {b} {season}. When does it [go|leave|depart]?
        """,
        swap=("a", "b"),
        ferry=pool(Kind.ANTONYM, "windward|leeward; northbound|southbound; coastal|inland"),
        a=PLACES,
        b=PLACES,
        season=SEASONS,
    ),
    frame(
        "distance",
        "travel",
        """
        Is it more than {n} {unit} from {a} to {b} by {by}?
        whether the {by} route from {a} to {b} is longer than {n} {unit}
        By {by}, is the way from {a} to {b} more than {n} {unit}?
        Going by {by}, does one cover more than {n} {unit} between {a} and {b}?
        """,
        n=SUMS,
        unit=pool(Kind.UNIT, "leagues|furlongs|versts|cubits"),
        a=PLACES,
        b=PLACES,
        by=pool(Kind.TARGET, "tram|canoe|funicular|moped|rickshaw|gondola"),
    ),
    frame(
        "seat",
        "travel",
        """
        {wh} do I [reserve|book|secure] a [seat|spot] on the {by} to {place} for {n} [travellers|passengers]?
        {wh} to [reserve|book|secure] a [seat|spot] on the {by} to {place} for {n} [travellers|passengers]
        For {n} [travellers|passengers] to {place}, {wh} is a [seat|spot] on the {by} reserved?
        We are {n} going to {place}. {wh} do we [reserve|book|secure] [seats|spots] on the {by}?
        """,
        wh=pool(Kind.QUESTION_WORD, "how|where|when"),
        by=pool(Kind.TARGET, "tram|canoe|funicular|moped|rickshaw|gondola"),
        place=PLACES,
        n=FEW,
    ),
    frame(
        "seat_size",
        "travel",
        """
        How wide is a {what} on the {mod} {by} in {place}?
        What is the width of a {what} on the {mod} {by} in {place}?
        how wide each {what} of the {mod} {by} in {place} is
        In {place}, what width does a {what} on the {mod} {by} have?
        """,
        what=pool(Kind.SENSE, "seat|spot"),
        mod=pool(Kind.MODIFIER, "|chartered|vintage|armoured|electric|guided"),
        by=pool(Kind.TARGET, "tram|canoe|funicular|moped|rickshaw|gondola"),
        place=PLACES,
    ),
    frame(
        "pets",
        "travel",
        """
        Are travellers with a {pet} {neg} admitted to the {mod} hotels of {place}?
        whether hotels in {place} that are {mod} do {neg} admit a {pet}
        Which {mod} hotels in {place} do {neg} [welcome|admit] a {pet}?
        I bring a {pet} to {place}. Which {mod} hotels do {neg} [welcome|admit] it?
        """,
        pet=pool(Kind.NAME, "ferret|parrot|tortoise|greyhound|hamster|iguana|pony|rabbit"),
        neg=pool(Kind.NEGATION, "|not"),
        mod=pool(Kind.MODIFIER, "boutique|beachfront|budget|haunted|lakeside"),
        place=PLACES,
    ),
    frame(
        "tour_time",
        "travel",
        """
        Does the {mod} tour of {place} [start|begin|set off] {order} {n} o'clock {season}?
        whether the {mod} tour of {place} [starts|begins|sets off] {order} {n} o'clock {season}
        {season}, is the start of the {mod} tour of {place} {order} {n} o'clock?
        """,
        mod=pool(Kind.MODIFIER, "|chartered|culinary|nocturnal|architectural|guided"),
        place=PLACES,
        order=pool(Kind.TIME, "before|after|at"),
        n=FEW,
        season=SEASONS,
    ),
)

PROGRAMMING = (
    frame(
        "port_code",
        "programming",
        """
        How would this {thing} written in {a} [look|be written] in {b}?
        [Rewrite|Reimplement|Port] this {thing} from {a} in {b}.
        how this {thing} goes from {a} to {b}
        I own a {thing} in {a} and [want|need] it in {b}. How would it [look|read]?
        """,
        swap=("a", "b"),
        thing=pool(
            Kind.NAME, "tokenizer|scheduler|lexer|daemon|mixin|closure|iterator|coroutine|linter|solver"
        ),
        a=CODE,
        b=CODE,
    ),
    frame(
        "collection",
        "programming",
        """
        In {code}, what is the [idiomatic|usual|canonical] way to make a {how} {thing} with {n} entries?
        How does one [make|build|construct] a {how} {thing} of {n} entries in {code}?
        how a {how} {thing} with {n} entries is [made|built|constructed] in {code}
        I need a {how} {thing} with {n} entries in {code}. How is it [made|built|constructed]?
        """,
        code=CODE,
        how=pool(
            Kind.ANTONYM,
            "sparse|dense; eager|deferred; signed|unsigned; acyclic|cyclic; row-major|column-major",
        ),
        thing=pool(Kind.NAME, "matrix|heap|trie|deque|bitmap|tensor|ring buffer|bloom filter"),
        n=SUMS,
    ),
    frame(
        "deploy",
        "programming",
        """
        {wh} should I [roll out|deploy|ship] the {thing} with {tool}?
        {wh} to [roll out|deploy|ship] the {thing} with {tool}
        With {tool}, {wh} is the {thing} [rolled out|deployed|shipped]?
        We use {tool}. {wh} does the {thing} get [rolled out|deployed|shipped]?
        """,
        wh=pool(Kind.QUESTION_WORD, "how|when|where|why"),
        thing=pool(
            Kind.NAME, "tokenizer|scheduler|lexer|daemon|mixin|closure|iterator|coroutine|linter|solver"
        ),
        tool=PLATFORMS,
    ),
    frame(
        "flag",
        "programming",
        """
        Does {tool} {n}.{m} run {what} the {flag} flag?
        whether {tool} {n}.{m} runs {what} the {flag} flag
        Can {tool} {n}.{m} be started {what} the {flag} flag?
        We start {tool} {n}.{m} {what} the {flag} flag. Does that [work|run]?
        """,
        tool=PLATFORMS,
        n=COUNTS,
        m=COUNTS,
        what=pool(Kind.NEGATION, "with|without"),
        flag=pool(Kind.NAME, "--verbose|--dry-run|--headless|--daemonize|--rootless|--telemetry"),
    ),
    frame(
        "repo_rename",
        "programming",
        """
        How does {person} [rename|retitle|give another name to] the {thing} [repository|repo]?
        how {person} can [rename|retitle|give another name to] the [repository|repo] of the {thing}
        The {thing} [repository|repo] of {person} needs another name. How is that [done|achieved]?
        """,
        person=PEOPLE,
        thing=pool(
            Kind.NAME, "tokenizer|scheduler|lexer|daemon|mixin|closure|iterator|coroutine|linter|solver"
        ),
    ),
    frame(
        "merge",
        "programming",
        """
        Does the {a} branch get [merged|folded] into the {b} branch in {tool}?
        whether {a} is [merged|folded] into {b} by {tool}
        In {tool}, is it the {a} branch that [goes|flows] into the {b} branch?
        """,
        swap=("a", "b"),
        a=pool(Kind.NAME, "hotfix|canary|rollout|preview|legacy|sandbox|trunk|vendor"),
        b=pool(Kind.NAME, "hotfix|canary|rollout|preview|legacy|sandbox|trunk|vendor"),
        tool=PLATFORMS,
    ),
    frame(
        "phrase",
        "programming",
        """
        What would "{phrase}" be in {tongue} on a {goods} label?
        [Put|Render|Express] "{phrase}" in {tongue} for the label of a {goods}.
        how "{phrase}" reads in {tongue} on the label of a {goods}
        The label of a {goods} says "{phrase}". What is that in {tongue}?
        """,
        phrase=pool(
            Kind.NAME, "mind the gap|handle with care|perishable cargo|this side up|fragile porcelain"
        ),
        tongue=TONGUES,
        goods=GOODS,
    ),
)

HEALTH = (
    frame(
        "see_doctor",
        "health",
        """
        Does Dr. {doctor} treat {mod} patients from {place} {season}?
        whether Dr. {doctor} [treats|takes|receives] {mod} patients from {place} {season}
        {season}, are {mod} patients from {place} [treated|taken|received] by Dr. {doctor}?
        I come from {place}. Will Dr. {doctor} [treat|take|receive] {mod} patients {season}?
        """,
        doctor=DOCTORS,
        mod=pool(Kind.MODIFIER, "|asthmatic|diabetic|teenage|pregnant|colourblind"),
        place=PLACES,
        season=SEASONS,
    ),
    frame(
        "referral",
        "health",
        """
        Did Dr. {a} [refer|send] the patient {person} to Dr. {b}?
        Was the patient {person} [referred|sent] to Dr. {b} by Dr. {a}?
        whether Dr. {b} had {person} [referred|sent] by Dr. {a}
        Is {person} a patient whom Dr. {a} [referred|sent] to Dr. {b}?
        """,
        swap=("a", "b"),
        a=DOCTORS,
        b=DOCTORS,
        person=PEOPLE,
    ),
    frame(
        "ward",
        "health",
        """
        What papers do {ward} patients of Dr. {doctor} [bring|need|present] {order} an X-ray?
        which papers {ward} patients of Dr. {doctor} [bring|need|present] {order} an X-ray
        {order} an X-ray, what papers should {ward} patients of Dr. {doctor} [bring|present]?
        I am with Dr. {doctor} among the {ward} patients. Which papers do I need {order} an X-ray?
        """,
        ward=pool(Kind.ANTONYM, "inpatient|outpatient; ambulatory|bedridden; vaccinated|unvaccinated"),
        doctor=DOCTORS,
        order=pool(Kind.TIME, "before|after|during"),
    ),
    frame(
        "dosage",
        "health",
        """
        Would {n} {unit} of {drug} a day be too much for {who}?
        whether {n} {unit} of {drug} a day is too much for {who}
        For {who}, are {n} {unit} of {drug} a day too much?
        Is a daily amount of {n} {unit} of {drug} [excessive|too high] for {who}?
        """,
        n=COUNTS,
        unit=pool(Kind.UNIT, "vials|lozenges|sachets|ampoules|micrograms|puffs"),
        drug=pool(Kind.NAME, "melatonin|codeine|magnesium|cortisone|loratadine|naproxen|zinc|valerian"),
        who=pool(Kind.NAME, "a toddler|a jogger|a beekeeper|a teenager|a diabetic|a sprinter"),
    ),
    frame(
        "checkup_cost",
        "health",
        """
        How much [will|would] a {what} with Dr. {doctor} [come to|cost] for {person}?
        how much {person} [pays|has to pay] for a {what} with Dr. {doctor}
        {person} goes to Dr. {doctor} for a {what}. What is the [price|charge]?
        """,
        what=pool(Kind.SENSE, "checkup|consultation"),
        doctor=DOCTORS,
        person=PEOPLE,
    ),
    frame(
        "checkup_book",
        "health",
        """
        How would {person} [arrange|schedule|set up] a [checkup|consultation] with Dr. {doctor} {season}?
        how {person} can [arrange|schedule|set up] a [checkup|consultation] with Dr. {doctor} {season}
        {person} wants a [checkup|consultation] with Dr. {doctor} {season}. How is it [arranged|scheduled]?
        """,
        person=PEOPLE,
        doctor=DOCTORS,
        season=SEASONS,
    ),
    frame(
        "claims",
        "health",
        """
        Are {q} of the {n} claims that {person} sent [settled|reimbursed]?
        whether {q} of the {n} claims from {person} have been [settled|reimbursed]
        {person} sent {n} claims. Have {q} of them been [settled|reimbursed]?
        Of the {n} claims by {person}, are {q} [settled|reimbursed] by now?
        """,
        q=pool(Kind.QUANTIFIER, "all|a handful|the bulk|none|half|a third|more than ten|at most ten"),
        n=COUNTS,
        person=PEOPLE,
    ),
)

HR = (
    frame(
        "mentor",
        "hr",
        """
        Is {a} the [mentor|coach] of {b} in the {team} team?
        Is {b} [mentored|coached] by {a} in the {team} team?
        whether {a} [mentors|coaches] {b} in the {team} team
        In the {team} team, does {a} [mentor|coach] {b}?
        """,
        swap=("a", "b"),
        a=PEOPLE,
        b=PEOPLE,
        team=pool(Kind.NAME, "payroll|logistics|procurement|compliance|facilities|outreach"),
    ),
    frame(
        "payslip_view",
        "hr",
        """
        Where does {person} [view|look up|consult] the {month} [payslip|paycheck]?
        where {person} can [view|look up|consult] the [payslip|paycheck] for {month}
        {person} is looking for the {month} [payslip|paycheck]. Where is it [kept|shown]?
        """,
        person=PEOPLE,
        month=MONTHS,
    ),
    frame(
        "payslip_issue",
        "hr",
        """
        On which day does the {team} team in {place} [get|receive] the {what}?
        which day the {what} is [issued|handed out] to the {team} team in {place}
        I am in the {team} team in {place}. On which day is the {what} [issued|handed out]?
        """,
        team=pool(Kind.NAME, "payroll|logistics|procurement|compliance|facilities|outreach"),
        place=PLACES,
        what=pool(Kind.SENSE, "payslip|paycheck"),
    ),
    frame(
        "contract",
        "hr",
        """
        Can a {contract} contract in {place} be [ended|terminated] within {n} {unit}?
        whether a {contract} contract in {place} may be [ended|terminated] within {n} {unit}
        In {place}, may one [end|terminate] a {contract} contract within {n} {unit}?
        """,
        contract=pool(
            Kind.ANTONYM,
            "verbal|notarised; salaried|commissioned; collective|individual; bilateral|unilateral",
        ),
        place=PLACES,
        n=FEW,
        unit=pool(Kind.UNIT, "sprints|terms|semesters|trimesters|shifts"),
    ),
    frame(
        "trainings",
        "hr",
        """
        Must {q} of the {mod} trainees in {place} [attend|take part in] the {team} course?
        whether {q} of the {mod} trainees in {place} have to [attend|take part in] the {team} course
        In {place}, is the {team} course [mandatory|obligatory] for {q} of the {mod} trainees?
        """,
        q=pool(Kind.QUANTIFIER, "all|a handful|the bulk|none|half|a third|more than ten|at most ten"),
        mod=pool(Kind.MODIFIER, "|bilingual|visiting|graduate|volunteer|freelance"),
        place=PLACES,
        team=pool(Kind.NAME, "payroll|logistics|procurement|compliance|facilities|outreach"),
    ),
    frame(
        "absence",
        "hr",
        """
        {wh} should {person} [report|announce] being {mod} ill {season}?
        {wh} {person} has to [report|announce] being {mod} ill {season}
        {person} is {mod} ill {season}. {wh} should that be [reported|announced]?
        """,
        wh=pool(Kind.QUESTION_WORD, "how|when|where|why"),
        person=PEOPLE,
        mod=pool(Kind.MODIFIER, "|chronically|suddenly|mildly|gravely"),
        season=SEASONS,
    ),
    frame(
        "allowance",
        "hr",
        """
        Which {team} staff in {place} {neg} the {mod} allowance?
        which of the {team} staff in {place} {neg} the {mod} allowance
        In {place}, who among the {team} staff {neg} the {mod} allowance?
        """,
        team=pool(Kind.NAME, "payroll|logistics|procurement|compliance|facilities|outreach"),
        place=PLACES,
        neg=pool(Kind.NEGATION, "claim|waive"),
        mod=pool(Kind.MODIFIER, "lodging|clothing|childcare|commuting|relocation"),
    ),
)

DEVICES = (
    frame(
        "screen",
        "devices",
        """
        How is the {gadget} set to {mode} mode for {n} {unit}?
        What do I [press|tap|choose] to have the {gadget} in {mode} mode for {n} {unit}?
        how one [puts|gets] the {gadget} into {mode} mode for {n} {unit}
        I want my {gadget} in {mode} mode for {n} {unit}. How is that [done|achieved]?
        """,
        gadget=GADGETS,
        mode=pool(Kind.ANTONYM, "portrait|landscape; cinema|karaoke; wired|cordless; matte|glossy"),
        n=COUNTS,
        unit=pool(Kind.UNIT, "laps|heartbeats|frames|tracks|episodes"),
    ),
    frame(
        "noise",
        "devices",
        """
        Why does my {mod} {gadget} [hum|buzz|drone] {season}?
        why my {mod} {gadget} [hums|buzzes|drones] {season}
        My {mod} {gadget} [hums|buzzes|drones] {season}. What is the [cause|reason]?
        {season}, my {mod} {gadget} makes a [humming|buzzing|droning] noise. Why is that?
        """,
        mod=pool(Kind.MODIFIER, "|second-hand|rooted|overheated|waterlogged|unboxed"),
        gadget=GADGETS,
        season=SEASONS,
    ),
    frame(
        "pair",
        "devices",
        """
        Does the {a} [control|steer|command] the {b} at {n} {unit}?
        Is the {b} [controlled|steered|commanded] by the {a} at {n} {unit}?
        whether the {b} obeys the {a} at {n} {unit}
        At {n} {unit}, can the {a} still [control|steer|command] the {b}?
        """,
        swap=("a", "b"),
        a=GADGETS,
        b=GADGETS,
        n=COUNTS,
        unit=pool(Kind.UNIT, "decibels|lumens|lux|hectopascals|becquerels|henries"),
    ),
    frame(
        "update",
        "devices",
        """
        Was the {gadget} {mod} update out {order} {month}?
        whether the {mod} update for the {gadget} was out {order} {month}
        Did people get the {mod} update for the {gadget} {order} {month}?
        """,
        gadget=GADGETS,
        mod=pool(Kind.MODIFIER, "|firmware|camera|emergency|beta"),
        order=pool(Kind.TIME, "before|after|during"),
        month=MONTHS,
    ),
    frame(
        "sync",
        "devices",
        """
        {wh} does my {gadget} sync its {what} with {tool}?
        {wh} the {gadget} syncs its {what} with {tool}
        My {gadget} syncs its {what} with {tool}. {wh} does it do that?
        """,
        wh=pool(Kind.QUESTION_WORD, "why|when|how|where"),
        gadget=GADGETS,
        what=pool(Kind.NAME, "bookmarks|ringtones|waypoints|workouts|podcasts|recordings"),
        tool=pool(Kind.TARGET, "Nextcloud|Dropbox|Obsidian|Strava|Plex|Syncthing"),
    ),
    frame(
        "permission",
        "devices",
        """
        Which apps on the {gadget} {neg} my {what} {season}?
        what apps on the {gadget} {neg} my {what} {season}
        {season}, which of the apps on my {gadget} {neg} my {what}?
        [List|Name|Give me] the apps on the {gadget} that {neg} my {what} {season}.
        """,
        gadget=GADGETS,
        neg=pool(Kind.NEGATION, "scan|do not scan"),
        what=pool(Kind.NAME, "bookmarks|ringtones|waypoints|workouts|podcasts|recordings"),
        season=SEASONS,
    ),
)

FRAMES = (*SUPPORT, *BILLING, *COOKING, *TRAVEL, *PROGRAMMING, *HEALTH, *HR, *DEVICES)

LIBRARY = Library("held out", FRAMES, MANNERS, late=frozenset({Kind.ROLES, Kind.UNIT}))
