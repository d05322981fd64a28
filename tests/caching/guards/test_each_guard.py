"""Each guard alone: pairs it must object to, and pairs in which it has nothing to say."""

import pytest

from phasewise.caching.guards import HARD_GUARDS, Guard
from phasewise.caching.guards.content import contents_differ
from phasewise.caching.guards.reading import read

GUARDS = {**dict(HARD_GUARDS), Guard.CONTENT: contents_differ}

OBJECTS = {
    Guard.NUMBERS: [
        ("How do I install Python 3.11?", "How do I install Python 3.12?"),
        ("What is 15% of 80?", "What is 15% of 90?"),
        ("Who was the first president?", "Who was the second president?"),
        ("Is five enough?", "Is six enough?"),
        ("Is twenty five enough?", "Is twenty enough?"),
        ("Convert 5.0 to hex", "Convert 50 to hex"),
        ("What is 7 + 3?", "What is 7 - 3?"),
        ("What is 7 * 3?", "What is 7 / 3?"),
        ("What is -5 squared?", "What is 5 squared?"),
        ("Fix error E1021", "Fix error E1022"),
        ("Explain GPT4", "Explain GPT3"),
        ("ages 5-10", "ages 5-12"),
        ("two hundred people", "two thousand people"),
        ("Is 5 > 3?", "Is 5 < 3?"),
        ("What happened in the 1960s?", "What happened in the 1970s?"),
        ("What happened on 9/11?", "What happened on 9/12?"),
        ("meet at 10:30", "meet at 11:30"),
        ("Compare 3 apples", "Compare 3 apples and 3 apples"),
        ("What does 😀 stand for?", "What does 😢 stand for?"),
        ("Is x == y?", "Is x != y?"),
        ("Is it !ready?", "Is it ready?"),
        ("What is a[1]?", "What is a{1}?"),
    ],
    Guard.UNITS: [
        ("How long is 5 km?", "How long is 5 miles?"),
        ("How much is $5?", "How much is €5?"),
        ("Is 30°C hot?", "Is 30°F hot?"),
        ("Is 5kg heavy?", "Is 5lb heavy?"),
        ("Is 5 m long?", "Is 5 ft long?"),
        ("wake me at 4am", "wake me at 4pm"),
        ("How many minutes does it take?", "How many hours does it take?"),
        ("Is it 20 MB?", "Is it 20 GB?"),
        ("What is the price in euros?", "What is the price in dollars?"),
    ],
    Guard.TIMES: [
        ("Is it safe to pray before 4am?", "Is it safe to pray after 4am?"),
        ("What is the weather today?", "What is the weather tomorrow?"),
        ("Who is the president?", "Who was the president?"),
        ("Who will win the cup?", "Who won the cup?"),
        ("Is Ann a nurse?", "Did Ann use to be a nurse?"),
        ("Is Ann a nurse?", "Is Ann becoming a nurse?"),
        ("Is Ann a nurse?", "Is Ann currently a nurse?"),
        ("Is it open on Monday?", "Is it open on Tuesday?"),
        ("Is it hot in June?", "Is it hot in July?"),
        ("Is it hot in May?", "Is it hot in the south?"),
        ("Who leads the team?", "Who led the team?"),
        ("What happened last week?", "What happened next week?"),
        ("Does he work there?", "Did he work there?"),
        ("Is it still raining?", "Is it raining?"),
        ("Has he resigned?", "Is he resigning?"),
    ],
    Guard.NEGATION: [
        ("Is it safe to drive?", "Is it safe not to drive?"),
        ("Why does it work?", "Why doesn't it work?"),
        ("Can I eat it with sugar?", "Can I eat it without sugar?"),
        ("Is he happy?", "Is he unhappy?"),
        ("Is it hopeful?", "Is it hopeless?"),
        ("Is it a toxic plant?", "Is it a non-toxic plant?"),
        ("Is it legal?", "Is it illegal?"),
        ("How do I connect it?", "How do I disconnect it?"),
        ("Has he ever lied?", "Has he never lied?"),
        ("Why is A not B but C?", "Why is A B but not C?"),
        ("Which of them know it?", "Which of them cannot know it?"),
        ("Who likes it?", "Nobody likes it?"),
        ("Is it possible?", "Is it impossible?"),
    ],
    Guard.CONNECTIVES: [
        ("Is Ann a nurse or an artist?", "Is Ann a nurse and an artist?"),
        ("Is it done if it rains?", "Is it done because it rains?"),
        ("Will it work if I restart?", "Will it work unless I restart?"),
    ],
    Guard.QUANTIFIERS: [
        ("Do all birds fly?", "Do some birds fly?"),
        ("Do all birds fly?", "Do birds fly?"),
        ("Can only admins do it?", "Can admins do it?"),
        ("Do I need at least two?", "Do I need at most two?"),
        ("How can I become more active?", "How can I become less active?"),
        ("What is the maximum size?", "What is the minimum size?"),
        ("Is it too hot?", "Is it hot?"),
        ("Do most people agree?", "Do people agree?"),
        ("Is it always true?", "Is it sometimes true?"),
        ("Who came last?", "Who came?"),
    ],
    Guard.QUESTION_WORD: [
        ("When was it built?", "Where was it built?"),
        ("Who built it?", "What built it?"),
        ("How much is it?", "How many is it?"),
        ("Why did it fail?", "How did it fail?"),
        ("Is it big?", "How big is it?"),
        ("How long is it?", "How old is it?"),
    ],
    Guard.MODAL: [
        ("Can I feed my cat?", "Should I feed my cat?"),
        ("Should I feed my cat?", "Do I have to feed my cat?"),
        ("Must I sign it?", "May I sign it?"),
        ("Would it help?", "Does it help?"),
        ("What can I wear?", "What should I wear?"),
    ],
    Guard.PERSONS: [
        ("Would he reject her?", "Would she reject him?"),
        ("Would his family be happy?", "Would Ava's family be happy?"),
        ("Would his family be happy?", "Would her family be happy?"),
        ("Can I sue you?", "Can you sue me?"),
        ("What is my name?", "What is your name?"),
        ("Did he hurt himself?", "Did he hurt him?"),
        ("Who did he hit?", "Who hit him?"),
        ("Who did I call?", "Who called me?"),
        ("What did they ask?", "What asked them?"),
    ],
    Guard.OPPOSITES: [
        ("Is it good?", "Is it bad?"),
        ("How do I turn on the light?", "How do I turn off the light?"),
        ("How do I upload it?", "How do I download it?"),
        ("Is he big?", "Is he bigger?"),
        ("What is the biggest city?", "What is the bigger city?"),
        ("Is it a letter to Ann?", "Is it a letter from Ann?"),
        ("What are the benefits?", "What are the drawbacks?"),
        ("Who is the employer?", "Who is the employee?"),
        ("Is the shop open?", "Is the shop closed?"),
        ("How do I buy it?", "How do I sell it?"),
        ("Which is heavier?", "Which is heaviest?"),
        ("Is he nice?", "Is he nicer?"),
        ("Is he happy?", "Is he happier?"),
    ],
    Guard.TARGETS: [
        ("how do I say hello in french", "how do I say hello in german"),
        ("sort a list in python", "sort a list in java"),
        ("what is the capital of france", "what is the capital of spain"),
        ("install it on windows", "install it on linux"),
    ],
    Guard.NAMES: [
        ("Is Ann Lee a nurse?", "Is Ann Moore a nurse?"),
        ("Is Ann an intern?", "Is Ann an English intern?"),
        ("What does NASA do?", "What does ESA do?"),
        ("What happened in World War I?", "What happened in World War II?"),
        ("SQL is what?", "JSON is what?"),
        ("Explain getName to us", "Explain setName to us"),
        ("What is IT?", "What is it?"),
        ("Who leads WHO?", "Who leads?"),
    ],
    Guard.VERBATIM: [
        ('Translate "good bye"', 'Translate "good night"'),
        ("What does `ls -l` do?", "What does `ls -a` do?"),
        ("Summarise https://a.example/x", "Summarise https://a.example/y"),
        ("What is in main.py?", "What is in test.py?"),
        ("Who is @ann?", "Who is @bob?"),
        ("Who is ann@x.org?", "Who is ann@y.org?"),
        ("What is max_size for?", "What is min_size for?"),
        ("What does --all do?", "What does --any do?"),
        ("Open /etc/hosts", "Open /etc/passwd"),
        ("What does 'a' mean?", "What does 'an' mean?"),
        ("What does “a” mean?", "What does “the” mean?"),
    ],
    Guard.LANGUAGE: [
        ("Где дом?", "Где сад?"),
        ("法国的首都是什么", "德国的首都是什么"),
        ("Wie ist das Wetter in der Stadt?", "Wie ist das Wetter auf dem Land?"),
    ],
    Guard.ORDER: [
        ("Did Nathan own the business?", "Was Nathan owned by the business?"),
        ("Does Ann like Bob?", "Does Bob like Ann?"),
        ("Does Ann like Bob?", "Is Ann liked by Bob?"),
        ("Are cats bigger than dogs?", "Are dogs bigger than cats?"),
        ("flights from Paris to Rome", "flights from Rome to Paris"),
        ("flights from Paris to Rome", "flights to Paris from Rome"),
        ("How do I convert XML to JSON?", "How do I convert JSON to XML?"),
        ("Who does Ann love?", "Who loves Ann?"),
        ("Can chicken be eaten raw?", "Can chicken eat raw?"),
        ("Should I wash and dry it?", "Should I dry and wash it?"),
        ("What do dogs eat?", "What eats dogs?"),
        ("Is salt water good?", "Is salt and water good?"),
        ("Is the father of Ann a king?", "Is Ann a father of the king?"),
        ("How many miles are in a km?", "How many km are in a mile?"),
        ("subtract 5 from 9", "subtract 9 from 5"),
        ("Is Ann taking photos of Bob?", "Is Bob taking photos of Ann?"),
        ("Did the dog chase the cat?", "Was the dog chased by the cat?"),
        ("Can the user delete the group?", "Can the group delete the user?"),
    ],
    Guard.CONTENT: [
        ("Can I feed my cat tuna?", "Can I feed my dog tuna?"),
        ("Is Ann a nurse?", "Is Ann a fake nurse?"),
        ("How do I cook rice?", "How do I wash rice?"),
        ("Is the cat in the box?", "Is the cat on the box?"),
        ("What is it made of?", "What is it made for?"),
        ("Is the door open?", "Does the door open?"),
        ("What is Ann like?", "What does Ann like?"),
        ("How do I give up smoking?", "How do I give smoking?"),
        ("How long is the train?", "How long is the training?"),
        ("Who is Ann's boss?", "Who is Ann the boss of?"),
        ("How do you say please?", "How do you say hello?"),
        ("Is it a suit?", "Is it a suite?"),
        ("Where is the past?", "Where is the paste?"),
    ],
}
SILENT = {
    Guard.NUMBERS: [
        ("Is 1,000 enough?", "Is one thousand enough?"),
        ("Is it the 1st?", "Is it the first?"),
        ("Is it 50%?", "Is it 50 percent?"),
        ("Which one is it?", "Which is it?"),
        ("two hundred and five men", "205 men"),
        ("5 million people", "5000000 people"),
        ("a well-known fact", "a well known fact"),
        ("Is it 5km?", "Is it 5 km?"),
    ],
    Guard.UNITS: [
        ("Is 5 km far?", "Is 5 kilometres far?"),
        ("How much is $5?", "How much is 5 dollars?"),
        ("Is it 30 degrees celsius?", "Is it 30 degrees centigrade?"),
        ("Where in the house is it?", "Where is it?"),
    ],
    Guard.TIMES: [
        ("Did Kyle steal it?", "Was it stolen by Kyle?"),
        ("How do I open it?", "How can I open it?"),
        ("What is it used to do?", "What is it for?"),
        ("Is it hot in January?", "Is it hot in Jan?"),
        ("Who is president now?", "Who is currently president?"),
        ("Who won?", "Who won it?"),
    ],
    Guard.NEGATION: [
        ("Isn't it safe?", "Is it not safe?"),
        ("I don't know", "I do not know"),
        ("Is the income high?", "Is the outcome high?"),
    ],
    Guard.CONNECTIVES: [("Is it a nurse or an artist?", "Is it an artist or a nurse?")],
    Guard.QUANTIFIERS: [("Do all birds fly?", "Does every bird fly?"), ("Are there any?", "Are there?")],
    Guard.QUESTION_WORD: [
        ("What is the way?", "Which is the way?"),
        ("What time is it?", "When is it?"),
        ("How do I become calm?", "How do I become a person who is calm?"),
        ("What happens when I press it?", "When I press it, what happens?"),
    ],
    Guard.MODAL: [
        ("How do I reset it?", "How can I reset it?"),
        ("Where do I buy it?", "Where can I buy it?"),
        ("Could you explain it?", "Explain it"),
        ("Do I have to pay?", "Do I need to pay?"),
    ],
    Guard.PERSONS: [
        ("How do I reset it?", "How do you reset it?"),
        ("How do I reset my phone?", "How to reset a phone?"),
        ("Could you explain my bill?", "Explain my bill"),
    ],
    Guard.OPPOSITES: [
        ("Is the good better than the bad?", "Is the good better or worse than the bad?"),
        ("Is he good?", "Is he a good man?"),
    ],
    Guard.TARGETS: [("sort it in JS", "sort it in javascript")],
    Guard.NAMES: [
        ("what is the capital of France", "What is the capital of france?"),
        ("How To Reset My Phone", "how to reset my phone"),
        ("Is it for an iPhone?", "is it for an iphone?"),
        ("Tell me about it", "tell Me about it"),
    ],
    Guard.VERBATIM: [
        ("What does 'x' mean?", 'What does "x" mean?'),
        ("It's Ann's and Bob's", "it is Ann's and Bob's"),
        ("See https://a.example/x.", "See https://a.example/x"),
        ("What does `ls` do?", "What does ls do?"),
    ],
    Guard.LANGUAGE: [
        ("What is the capital of France?", "what's the capital of France"),
        ("Is El Paso in Texas?", "Is Los Angeles in Texas?"),
        ("Где дом?", "где дом"),
    ],
    Guard.ORDER: [
        ("Did Nathan own the business?", "Was the business owned by Nathan?"),
        ("Does Ann hurt Bob?", "Is Bob hurt by Ann?"),
        ("Which house did Kyle steal?", "Which house was stolen by Kyle?"),
        ("How do I fix the sink?", "How can the sink be fixed?"),
        ("flights from Paris to Rome", "flights to Rome from Paris"),
        ("How do I sort a list in Python?", "In Python, how do I sort a list?"),
        ("Is Ann married to Bob?", "Is Bob married to Ann?"),
        ("Is Ann Lee a French nurse?", "Is Ann Lee a nurse and French?"),
        ("Is it near New York and New Jersey?", "Is it near New Jersey and New York?"),
        ("What is the capital of France?", "What is France's capital?"),
        ("Who do critics think is the best coach?", "Who is the best coach according to critics?"),
        (
            "What is the difference between a cat and a dog?",
            "What is the difference between a dog and a cat?",
        ),
        ("Did the king of France sell the house?", "Was the house sold by the king of France?"),
    ],
    Guard.CONTENT: [
        ("How do I buy a car?", "How do I purchase a car?"),
        ("Did Kyle steal it?", "Was it stolen by Kyle?"),
        ("Is that owl sitting there?", "Is that owl actually sitting there?"),
        ("Is it 5 km?", "Is it 5 kilometers?"),
        ("Is Ann related to Bob?", "Is Bob related to Ann?"),
        ("Who do critics think is best?", "Who is best according to critics?"),
        ("What is the capital of Peru?", "What is Peru's capital?"),
    ],
}


def cases(table):
    return [(guard, *pair) for guard, pairs in table.items() for pair in pairs]


@pytest.mark.parametrize(("guard", "question", "stored"), cases(OBJECTS))
def test_it_objects(guard, question, stored):
    one, other = read(question), read(stored)
    assert GUARDS[guard](one, other) is not None
    assert GUARDS[guard](other, one) is not None


@pytest.mark.parametrize(("guard", "question", "stored"), cases(SILENT))
def test_it_is_silent(guard, question, stored):
    one, other = read(question), read(stored)
    assert GUARDS[guard](one, other) is None
    assert GUARDS[guard](other, one) is None


def test_every_guard_is_tried_both_ways():
    assert set(OBJECTS) == set(SILENT) == set(Guard)
