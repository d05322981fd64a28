"""The questions that guards and bound may be tuned on; those that they are judged by stand in held_out.py."""

from __future__ import annotations

from .grammar import Kind, frame, pool
from .library import Library
from .manners import Manners

MANNERS = Manners(
    asking=(
        "Could you tell me {}?",
        "Can you tell me {}?",
        "I would like to know {}.",
        "Do you know {}?",
        "Please explain {}.",
        "I was wondering {}.",
        "Can you help me understand {}?",
        "Tell me {}, please.",
    ),
    greetings=("Hi!", "Hello,", "Hey,", "Quick question:", "Good morning.", "Excuse me,"),
    thanks=("Thanks!", "Thank you.", "Please help.", "Thanks a lot."),
    fillers=("actually", "just", "simply", "really"),
)

PEOPLE = pool(
    Kind.NAME,
    "Anna Keller|David Ortiz|Maria Lopez|John Baker|Susan Clarke|Peter Novak|Laura Schmidt|Ahmed Hassan|"
    "Emily Carter|Paul Jensen|Grace Kim|Victor Rossi",
)
CITIES = pool(
    Kind.NAME,
    "Paris|Rome|Berlin|Madrid|London|Vienna|Lisbon|Prague|Dublin|Oslo|Athens|Chicago|Boston|Toronto",
)
MONTHS = pool(
    Kind.TIME,
    "January|February|March|April|May|June|July|August|September|October|November|December",
)
WEEKDAYS = pool(Kind.TIME, "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday")
SMALL = pool(Kind.NUMBER, "2|3|4|5|6|7|8|9|10|12")
AMOUNTS = pool(Kind.NUMBER, "15|20|25|30|40|50|75|100|150|200|250|500")
SEATS = pool(Kind.NUMBER, "|".join(str(seats) for seats in range(2, 60)))
LANGUAGES = pool(
    Kind.TARGET,
    "French|German|Spanish|Italian|Japanese|Portuguese|Russian|Arabic|Polish|Korean|Greek|Turkish",
)
CODE = pool(Kind.TARGET, "Python|Java|Go|Rust|JavaScript|Ruby|C++|PHP|Swift|TypeScript")
DEVICES = pool(
    Kind.NAME, "iPhone 13|Galaxy S21|Pixel 6|iPad Air|MacBook Pro|ThinkPad X1|Kindle|PlayStation 5"
)

FRAMES = (
    frame(
        "refund",
        "billing",
        """
        How [do|can] I get a refund for the {mod} {item} I [bought|purchased|ordered] in {month}?
        I [bought|purchased|ordered] the {mod} {item} in {month}. How [do|can] I get my money back?
        how [I can|to] get a refund for the {mod} {item} that was [bought|purchased|ordered] in {month}
        What is the [way|process] to return the {mod} {item} from {month} for a refund?
        """,
        mod=pool(Kind.MODIFIER, "|red|broken|annual|used|large"),
        item=pool(
            Kind.NAME, "jacket|lamp|gift card|subscription|headset|printer|blender|backpack|monitor|carpet"
        ),
        month=MONTHS,
    ),
    frame(
        "late_fee",
        "billing",
        """
        [Is there|Do you charge] a fee if I pay {n} {unit} late?
        If I pay {n} {unit} late, [is there|will I be charged] a fee?
        whether [there is|you charge] a fee for paying {n} {unit} late
        Does a payment that comes {n} {unit} late cost [extra|more]?
        """,
        n=SMALL,
        unit=pool(Kind.UNIT, "days|weeks|hours|months"),
    ),
    frame(
        "pay_method",
        "billing",
        """
        Can I pay my {month} {what} for the {item} {how} a credit card?
        [Is it possible|Am I able] to pay my {month} {what} for the {item} {how} a credit card?
        whether I can pay the {month} {what} for my {item} {how} a credit card
        My {what} for the {item} is due in {month}. Can I pay it {how} a credit card?
        """,
        month=MONTHS,
        item=pool(Kind.NAME, "phone|car|garden|yacht|studio"),
        what=pool(Kind.SENSE, "bill|statement|invoice"),
        how=pool(Kind.NEGATION, "with|without"),
    ),
    frame(
        "invoice_copy",
        "billing",
        """
        Where can I [find|see|download] the [bill|invoice] for {month} from {person}?
        where to [find|see|download] the [bill|invoice] from {person} for {month}
        I need the [bill|invoice] that {person} sent for {month}. Where is it?
        The {month} [bill|invoice] from {person}: where can I [find|see|download] it?
        """,
        month=MONTHS,
        person=PEOPLE,
    ),
    frame(
        "transfer_owed",
        "billing",
        """
        Does {a} owe {b} {n} dollars?
        whether {a} owes {b} {n} dollars
        Are {n} dollars owed to {b} by {a}?
        Is it true that {a} owes {n} dollars to {b}?
        """,
        swap=("a", "b"),
        a=PEOPLE,
        b=PEOPLE,
        n=AMOUNTS,
    ),
    frame(
        "password",
        "support",
        """
        How [do|can] I {verb} my {what} password?
        how [I can|to] {verb} the password of my {what}
        What are the steps to {verb} my {what} password?
        I [want|need] to {verb} the password for my {what}. How [do|can] I do that?
        """,
        verb=pool(Kind.ANTONYM, "show|hide; create|delete; enable|disable; lock|unlock"),
        what=pool(Kind.NAME, "email|wifi|bank|laptop|router|Netflix|Spotify|school|work"),
    ),
    frame(
        "hours",
        "support",
        """
        {wh} does the {city} office open on {day}?
        {wh} the {city} office opens on {day}
        On {day}, {wh} does the office in {city} open?
        """,
        wh=pool(Kind.QUESTION_WORD, "when|why|how often"),
        city=CITIES,
        day=WEEKDAYS,
    ),
    frame(
        "notify",
        "support",
        """
        How [do|can] I get notified {order} my {thing} expires?
        how [I can|to] be notified {order} my {thing} expires
        I want a [reminder|notification] {order} my {thing} [expires|runs out]. How [do|can] I set that up?
        """,
        order=pool(Kind.TIME, "before|after"),
        thing=pool(Kind.NAME, "licence|passport|warranty|domain|coupon|membership|certificate|permit"),
    ),
    frame(
        "close_account",
        "support",
        """
        What happens to my {what} when I close my {mod} account?
        what happens to my {what} after I close my {mod} account
        If I close my {mod} account, what [happens to|becomes of] my {what}?
        I am closing my {mod} account. What will happen to my {what}?
        """,
        mod=pool(Kind.MODIFIER, "|business|family|trial|student"),
        what=pool(Kind.NAME, "photos|messages|points|files|contacts|playlists|credits|bookings"),
    ),
    frame(
        "edit_profile",
        "support",
        """
        How [do|can] I [change|edit|update] the {what} in my [profile|account]?
        how [I can|to] [change|edit|update] the {what} of my [profile|account]
        I want to [change|edit|update] the {what} shown in my [profile|account]. How?
        What do I do to [change|edit|update] my {what}?
        """,
        what=pool(Kind.NAME, "address|phone number|picture|birthday|nickname|time zone|signature|language"),
    ),
    frame(
        "delete_what",
        "support",
        """
        How [do|can] I [delete|remove|erase] my {what} on {device}?
        how [I can|to] [delete|remove|erase] my {what} from {device}
        On {device}, how [do|can] I [delete|remove|erase] my {what}?
        """,
        what=pool(Kind.SENSE, "profile|account"),
        device=DEVICES,
    ),
    frame(
        "boil",
        "cooking",
        """
        How long [do|should] I {how} {n} {food}?
        how long to {how} {n} {food}
        For {n} {food}, how [long|many minutes] [do|should] I {how} them?
        I have {n} {food}. How long should I {how} them?
        """,
        how=pool(Kind.ANTONYM, "boil|freeze; cook|cool; heat|chill"),
        n=SMALL,
        food=pool(Kind.NAME, "eggs|potatoes|carrots|dumplings|sausages|lobsters|beets|artichokes"),
    ),
    frame(
        "substitute",
        "cooking",
        """
        Can I [use|take] {a} instead of {b} in {dish}?
        Can {a} be used instead of {b} in {dish}?
        whether I can [use|take] {a} in place of {b} for {dish}
        Is {a} a good [substitute|replacement] for {b} in {dish}?
        """,
        swap=("a", "b"),
        a=pool(Kind.NAME, "butter|oil|honey|sugar|yogurt|cream|milk|lard"),
        b=pool(Kind.NAME, "butter|oil|honey|sugar|yogurt|cream|milk|lard"),
        dish=pool(Kind.TARGET, "pancakes|brownies|bread|pasta sauce|muffins|cookies|a cake|soup"),
    ),
    frame(
        "convert_oven",
        "cooking",
        """
        What is {n} {unit} of {what} in {to}?
        How many {to} are {n} {unit} of {what}?
        how many {to} {n} {unit} of {what} are
        I need {n} {unit} of {what}. How many {to} is that?
        """,
        n=AMOUNTS,
        what=pool(Kind.NAME, "flour|rice|sugar|oats|cocoa"),
        to=pool(Kind.UNIT, "cups|spoons|glasses"),
        unit=pool(Kind.UNIT, "grams|ounces|pounds|kilograms"),
    ),
    frame(
        "allergy",
        "cooking",
        """
        Which {food} recipes are {neg} safe for [people|somebody] with a {mod} allergy?
        which {food} recipes are {neg} safe with a {mod} allergy
        With a {mod} allergy, which {food} recipes are {neg} safe?
        """,
        food=pool(Kind.NAME, "chicken|pasta|salad|rice|fish|beef|tofu|bean"),
        neg=pool(Kind.NEGATION, "|not"),
        mod=pool(Kind.MODIFIER, "nut|severe nut|mild nut|milk|severe milk"),
    ),
    frame(
        "servings",
        "cooking",
        """
        Do {q} recipes in the {city} cookbook need an oven?
        whether {q} recipes in the {city} cookbook need an oven
        In the {city} cookbook, do {q} recipes [need|require] an oven?
        """,
        q=pool(Kind.QUANTIFIER, "all|some|most|any|no|only two"),
        city=CITIES,
    ),
    frame(
        "flight",
        "travel",
        """
        How much is a {way} flight from {a} to {b} in {month}?
        What does a {way} flight from {a} to {b} cost in {month}?
        how much a {way} flight from {a} to {b} [costs|is] in {month}
        In {month}, what is the [price|cost] of a {way} flight from {a} to {b}?
        I am flying from {a} to {b} in {month}. How much is a {way} flight?
        """,
        swap=("a", "b"),
        way=pool(Kind.MODIFIER, "|direct|night|first class"),
        a=CITIES,
        b=CITIES,
        month=MONTHS,
    ),
    frame(
        "visa",
        "travel",
        """
        Do I need a visa to [visit|travel to] {city} for {n} {unit}?
        whether I need a visa to [visit|go to] {city} for {n} {unit}
        For a [stay|trip] of {n} {unit} in {city}, do I need a visa?
        Is a visa [needed|required] for {n} {unit} in {city}?
        """,
        city=CITIES,
        n=SMALL,
        unit=pool(Kind.UNIT, "days|weeks|months"),
    ),
    frame(
        "check_in",
        "travel",
        """
        {wh} can I check in for my {mod} [holiday|vacation] flight to {city}?
        {wh} I can check in for my {mod} flight to {city}
        My {mod} flight to {city}: {wh} can I check in?
        """,
        wh=pool(Kind.QUESTION_WORD, "when|where|how"),
        mod=pool(Kind.MODIFIER, "|delayed|evening|connecting"),
        city=CITIES,
    ),
    frame(
        "luggage",
        "travel",
        """
        How many bags can I take on the {when} train to {city}?
        What is the [limit|allowance] for bags on the {when} train to {city}?
        how many bags [are allowed|I can bring] on the {when} train to {city}
        On the {when} train to {city}, how many bags [are allowed|may I bring]?
        """,
        when=pool(Kind.ANTONYM, "first|last; fast|slow; early|late"),
        city=CITIES,
    ),
    frame(
        "translate",
        "programming",
        """
        How [do|can] I [convert|translate|port] this {a} {thing} to {b}?
        how to [convert|translate|port] this {thing} from {a} to {b}
        What is the [best|right] way to [move|rewrite] this {a} {thing} in {b}?
        I have this {thing} in {a}. How [do|can] I write it in {b}?
        """,
        swap=("a", "b"),
        a=CODE,
        b=CODE,
        thing=pool(Kind.NAME, "function|class|script|loop|library|test|parser"),
    ),
    frame(
        "sort_list",
        "programming",
        """
        How [do|can] I sort a list of {what} in {how} order in {code}?
        how to sort a list of {what} in {how} order [in|with] {code}
        In {code}, how is a list of {what} sorted in {how} order?
        I have a list of {what}. How [do|can] I sort it in {how} order in {code}?
        """,
        what=pool(Kind.NAME, "dates|numbers|strings|files|objects|tuples"),
        how=pool(Kind.ANTONYM, "increasing|decreasing; forward|backward"),
        code=CODE,
    ),
    frame(
        "version",
        "programming",
        """
        Does {code} {n} support {what}?
        whether {code} {n} supports {what}
        Is {what} supported [in|by] {code} {n}?
        I am on {code} {n}. Does it [support|have] {what}?
        """,
        code=CODE,
        n=pool(Kind.NUMBER, "1.4|1.5|2.0|2.7|3.8|3.9|3.10|4.1|5.2"),
        what=pool(
            Kind.NAME, "generics|pattern matching|async functions|operator overloading|type hints|macros"
        ),
    ),
    frame(
        "null_check",
        "programming",
        """
        How [do|can] I check that a variable is {neg} {what} in {code}?
        how to check [that|whether] a variable is {neg} {what} in {code}
        In {code}, how [do|can] I [test|verify] that a variable is {neg} {what}?
        """,
        neg=pool(Kind.NEGATION, "|not"),
        what=pool(Kind.NAME, "null|empty|a string|a number|an array|a function"),
        code=CODE,
    ),
    frame(
        "say_in",
        "programming",
        """
        How do you say "{phrase}" in {lang}?
        how to say "{phrase}" in {lang}
        What is "{phrase}" in {lang}?
        Translate "{phrase}" [into|to] {lang}.
        What is the {lang} [translation of|word for] "{phrase}"?
        """,
        phrase=pool(
            Kind.NAME, "good night|thank you|see you soon|happy birthday|I am hungry|where is the station"
        ),
        lang=LANGUAGES,
    ),
    frame(
        "appointment",
        "health",
        """
        Can I [see|visit] Dr. {person} on {day} {order} {n} pm?
        whether I can [see|visit] Dr. {person} on {day} {order} {n} pm
        Is Dr. {person} [available|free] on {day} {order} {n} pm?
        On {day}, can I get an appointment with Dr. {person} {order} {n} pm?
        """,
        person=pool(Kind.NAME, "Keller|Ortiz|Baker|Clarke|Novak|Hassan|Jensen|Rossi"),
        day=WEEKDAYS,
        order=pool(Kind.TIME, "before|after"),
        n=SMALL,
    ),
    frame(
        "insurance",
        "health",
        """
        Does my {mod} insurance {cover} {what}?
        whether my {mod} insurance {cover}s {what}
        Will {what} be {cover}ed by my {mod} insurance?
        I have {mod} insurance. Does it {cover} {what}?
        """,
        mod=pool(Kind.MODIFIER, "|travel|basic|dental|private"),
        cover=pool(Kind.ANTONYM, "accept|reject"),
        what=pool(
            Kind.NAME, "glasses|physiotherapy|vaccines|braces|surgery|hearing aids|blood tests|therapy"
        ),
    ),
    frame(
        "dose",
        "health",
        """
        Is it safe to take {n} {unit} of {drug} {order} a meal?
        whether it is safe to take {n} {unit} of {drug} {order} a meal
        Can I [safely|] take {n} {unit} of {drug} {order} [a meal|eating]?
        """,
        n=AMOUNTS,
        unit=pool(Kind.UNIT, "mg|ml"),
        drug=pool(Kind.NAME, "aspirin|ibuprofen|vitamin C|paracetamol"),
        order=pool(Kind.TIME, "before|after|during"),
    ),
    frame(
        "records",
        "health",
        """
        {wh} can [read|see|access] the {mod} records of {person}?
        {wh} has access to the {mod} records of {person}
        {wh} is allowed to [read|see|access] {person}'s {mod} records?
        """,
        wh=pool(Kind.QUESTION_WORD, "who|which nurse|what system"),
        mod=pool(Kind.MODIFIER, "|old|medical|paper"),
        person=PEOPLE,
    ),
    frame(
        "leave_days",
        "hr",
        """
        How many {what} days [do|can] employees in {city} with {n} years of service take?
        how many {what} days employees in {city} with {n} years of service [get|can take]
        With {n} years of service in {city}, how many {what} days do I [get|have]?
        After {n} years in {city}, what number of {what} days is an employee [given|granted]?
        """,
        city=CITIES,
        what=pool(Kind.SENSE, "vacation|holiday"),
        n=SMALL,
    ),
    frame(
        "approve",
        "hr",
        """
        Does {a} [approve|sign off] the expenses of {b}?
        whether {a} approves the expenses of {b}
        Are {b}'s expenses [approved|signed off] by {a}?
        Is {a} the one who approves what {b} spends?
        """,
        swap=("a", "b"),
        a=PEOPLE,
        b=PEOPLE,
    ),
    frame(
        "remote",
        "hr",
        """
        Are {q} employees in {city} allowed to work {where}?
        whether {q} employees in {city} [may|can] work {where}
        In {city}, [may|can] {q} employees work {where}?
        """,
        q=pool(Kind.QUANTIFIER, "all|some|most|any|only senior|at least two"),
        city=CITIES,
        where=pool(Kind.ANTONYM, "inside|outside; remotely|on site"),
    ),
    frame(
        "notice",
        "hr",
        """
        What is the notice period for {mod} staff in {city} who have {neg} finished probation?
        how long the notice period is for {mod} staff in {city} who have {neg} finished probation
        In {city}, how long is the notice for {mod} staff that have {neg} [finished|completed] probation?
        """,
        city=CITIES,
        mod=pool(Kind.MODIFIER, "|temporary|senior|part-time|seasonal"),
        neg=pool(Kind.NEGATION, "|not"),
    ),
    frame(
        "battery",
        "devices",
        """
        Why does the battery of my {device} [drain|empty] so {how} {where}?
        why the battery in my {device} [drains|empties] so {how} {where}
        My {device} loses battery so {how} {where}. Why?
        What makes the battery of my {device} [drain|empty] so {how} {where}?
        """,
        device=DEVICES,
        how=pool(Kind.ANTONYM, "quickly|slowly; much|little"),
        where=pool(Kind.TIME, "at night|in the morning|since yesterday|since last week"),
    ),
    frame(
        "connect",
        "devices",
        """
        How [do|can] I connect my {device} {how} wifi?
        how [I can|to] connect my {device} {how} wifi
        What is the way to connect my {device} {how} wifi?
        My {device} should be connected {how} wifi. How [do|can] I do that?
        """,
        device=DEVICES,
        how=pool(Kind.NEGATION, "with|without; to|not to"),
    ),
    frame(
        "portal",
        "devices",
        """
        How [do|can] I [register|sign up] my {device} {where} for {n} years of warranty?
        how [I can|to] [register|sign up] my {device} {where} for {n} years of warranty
        I want {n} years of warranty for my {device}. How do I register it {where}?
        """,
        device=DEVICES,
        where=pool(Kind.TURNED, "online|on the website"),
        n=SMALL,
    ),
    frame(
        "plan_name",
        "billing",
        """
        What is included in the {plan} for {n} users?
        what the {plan} for {n} users includes
        For {n} users, what [do I get with|is in] the {plan}?
        """,
        plan=pool(Kind.TURNED, "basic plan|starter plan"),
        n=SEATS,
    ),
)

LIBRARY = Library("development", FRAMES, MANNERS, late=frozenset({Kind.ROLES, Kind.TARGET}))
