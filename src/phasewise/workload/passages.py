"""Texts to be copied: prose, code and records, of the kinds that answers repeat from their prompts.

What is asked about them, and how much of each is written back, is left to written.py.
"""

from __future__ import annotations

FERRY = """\
The ferry to the outer islands leaves from the stone pier at seven in the morning and again at two in the \
afternoon. The crossing takes fifty minutes when the sea is calm and a little over an hour when the wind \
comes from the west. Passengers who bring bicycles should arrive twenty minutes early, because the \
bicycles are tied to the rail on the lower deck before anyone else may board. There is a small shop near \
the bow that sells coffee, bread and postcards. The first stop is the island with the lighthouse, where \
most of the day visitors leave. The second stop is the fishing village on the north side, where the ferry \
waits for half an hour while the mail is carried ashore. The last stop is the bird reserve, which is \
closed to visitors in May and June. On the way back the ferry stops at the village only if somebody has \
asked the captain to do so. In winter there is one crossing a day, and none at all on days when the \
harbour office has raised the red flag. Tickets are sold on board and cost the same for every stop."""

INVENTORY = """\
{"warehouse": "north", "checked_by": "Ellen Marsh", "items": [
  {"id": 1001, "name": "hammer", "count": 42, "price": 12.50, "shelf": "A1"},
  {"id": 1002, "name": "screwdriver", "count": 130, "price": 4.75, "shelf": "A2"},
  {"id": 1003, "name": "paint brush", "count": 64, "price": 3.20, "shelf": "A3"},
  {"id": 1004, "name": "measuring tape", "count": 25, "price": 8.90, "shelf": "B1"},
  {"id": 1005, "name": "hand saw", "count": 17, "price": 19.99, "shelf": "B2"},
  {"id": 1006, "name": "work gloves", "count": 88, "price": 6.40, "shelf": "B3"},
  {"id": 1007, "name": "ladder", "count": 9, "price": 74.00, "shelf": "C1"},
  {"id": 1008, "name": "bucket", "count": 51, "price": 5.10, "shelf": "C2"}
]}"""

QUEUE_CODE = """\
class Queue:
    def __init__(self, limit):
        self.limit = limit
        self.items = []

    def put(self, item):
        if len(self.items) >= self.limit:
            raise ValueError("the queue is full")
        self.items.append(item)

    def get(self):
        if not self.items:
            raise ValueError("the queue is empty")
        return self.items.pop(0)

    def size(self):
        return len(self.items)

    def is_empty(self):
        return len(self.items) == 0

    def clear(self):
        self.items = []

    def contains(self, item):
        for other in self.items:
            if other == item:
                return True
        return False"""

BREAD = """\
To bake a simple loaf of bread you need five hundred grams of flour, three hundred grams of warm water, \
ten grams of salt and seven grams of dry yeast. Mix the flour and the salt in a large bowl. Stir the yeast \
into the warm water and wait for five minutes. Pour the water into the flour and mix with a wooden spoon \
until no dry flour is left. Turn the dough out on the table and knead it for ten minutes, until it is \
smooth and springs back when you press it. Put the dough back into the bowl, cover it with a cloth and let \
it rest for one hour in a warm place. Fold the dough once from each side, shape it into a ball and let it \
rest for another half hour. Heat the oven to two hundred and thirty degrees. Cut a cross into the top of \
the loaf with a sharp knife, put it into the oven and bake it for thirty five minutes. The bread is done \
when the bottom sounds hollow. Let it cool on a rack for at least an hour before you cut it."""

MINUTES = """\
Minutes of the meeting of the garden club on the third of March. Present were Anna Berg, Peter Holm, Maria \
Lind, Thomas Falk and Julia Strand. Anna Berg opened the meeting at half past six. The minutes of the last \
meeting were read and approved. Peter Holm reported that the new fence along the road is finished and cost \
forty pounds less than planned. Maria Lind asked whether the money could be spent on a second water tank. \
The members agreed, and Thomas Falk will ask for prices before the next meeting. Julia Strand reported \
that the school would like to use two of the empty plots for a class of twelve children. The members \
agreed to lend the plots for one year. Thomas Falk reminded everyone that the shed must be locked in the \
evening, because tools were lost in January. Anna Berg thanked Peter Holm for building the benches beside \
the pond. The next meeting will be on the seventh of April at the same time. The meeting was closed at a \
quarter to eight."""

CONFIGURATION = """\
server:
  host: 127.0.0.1
  port: 8080
  workers: 4
  timeout: 30
database:
  host: 127.0.0.1
  port: 5432
  name: orders
  user: shop
  pool_size: 10
cache:
  host: 127.0.0.1
  port: 6379
  name: sessions
  lifetime: 3600
logging:
  level: info
  file: server.log
  keep_days: 14
mail:
  host: 127.0.0.1
  port: 2525
  sender: orders
  retries: 3"""

TIMETABLE = """\
day,room,start,end,subject,teacher
Monday,101,08:00,09:30,mathematics,Mr Brown
Monday,102,09:45,11:15,history,Mrs Green
Monday,103,11:30,13:00,biology,Mr White
Tuesday,101,08:00,09:30,geography,Mrs Black
Tuesday,102,09:45,11:15,chemistry,Mr Stone
Tuesday,103,11:30,13:00,music,Mrs Wood
Wednesday,101,08:00,09:30,physics,Mr Hill
Wednesday,102,09:45,11:15,English,Mrs Lake
Wednesday,103,11:30,13:00,art,Mr Field
Thursday,101,08:00,09:30,mathematics,Mr Brown
Thursday,102,09:45,11:15,history,Mrs Green
Thursday,103,11:30,13:00,biology,Mr White
Friday,101,08:00,09:30,geography,Mrs Black
Friday,102,09:45,11:15,chemistry,Mr Stone"""

SERVER_LOG = """\
2024-03-01 10:15:02 INFO server started on port 8080
2024-03-01 10:15:03 INFO connected to database orders
2024-03-01 10:15:07 INFO user 17 logged in
2024-03-01 10:15:09 INFO user 17 opened order 2031
2024-03-01 10:15:12 WARNING order 2031 took 1200 ms
2024-03-01 10:15:15 INFO user 23 logged in
2024-03-01 10:15:18 INFO user 23 opened order 2044
2024-03-01 10:15:21 ERROR order 2044 was not found
2024-03-01 10:15:24 INFO user 23 logged out
2024-03-01 10:15:27 INFO user 17 opened order 2032
2024-03-01 10:15:31 INFO user 17 closed order 2032
2024-03-01 10:15:33 INFO user 17 logged out"""

LIGHTHOUSE = """\
The lighthouse keeper wrote in his book every evening. On the first of October he wrote that the lamp had \
been cleaned and that two ships had passed, one sailing north and one sailing south. On the second of \
October he wrote that the oil had come, eleven barrels in all, and that the boat which brought them had \
lost its anchor. On the third of October there was fog, and he rang the bell every two minutes from noon \
until midnight. On the fourth of October he slept until ten and then mended the stairs, because the ninth \
step had become loose. On the fifth of October a storm came from the west and broke a window in the lamp \
room. He closed the hole with a board and kept the light burning, though the wind blew it out three times. \
On the sixth of October the sea was quiet again. He counted forty gulls on the roof, and wrote that he \
would paint the door green in the spring."""

LETTER = """\
Dear Mr Carter, thank you for your letter of the twelfth of June about the apartment on Mill Street. The \
apartment is on the second floor and has three rooms, a kitchen and a bath. The rent is eight hundred and \
fifty pounds a month, and heating and water are included. There is a cellar for bicycles and a small \
garden behind the house which all tenants may use. The apartment is free from the first of August. If you \
would like to see it, please call our office between nine and five on any day from Monday to Friday, and \
ask for Mrs Hughes. She has the key and will meet you at the house. Please bring a letter from your \
employer and proof of where you have lived for the past three years. We ask for a deposit of two months' \
rent, which is paid back when you move out and the apartment is in good order. Pets are allowed if the \
neighbours do not object. We look forward to hearing from you. Yours sincerely, Robert Page."""

TEMPERATURE_CODE = """\
def to_celsius(fahrenheit):
    return (fahrenheit - 32) * 5 / 9


def to_fahrenheit(celsius):
    return celsius * 9 / 5 + 32


def average(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def warmest(days):
    best = days[0]
    for day in days:
        if day["high"] > best["high"]:
            best = day
    return best


def report(days):
    for day in days:
        low = to_celsius(day["low"])
        high = to_celsius(day["high"])
        print(day["name"], round(low, 1), round(high, 1))
    print("warmest day:", warmest(days)["name"])"""

RULES = """\
1. The reading room is open from nine in the morning until eight in the evening.
2. Coats and bags are left in the lockers at the entrance.
3. Books from the open shelves may be read at any table.
4. Books from the archive are read at the tables near the desk.
5. Food and drink are not allowed in the reading room.
6. Please speak quietly, and make telephone calls in the hall.
7. Photographs may be taken without a flash and without a stand.
8. Copies are made by the staff and cost ten pence a page.
9. A reader may borrow six books at a time for four weeks.
10. Books that are returned late cost twenty pence a day.
11. Lost books are paid for at the price of a new copy.
12. The staff at the desk will help you to find what you need."""

PASSAGES = (
    FERRY,
    INVENTORY,
    QUEUE_CODE,
    BREAD,
    MINUTES,
    CONFIGURATION,
    TIMETABLE,
    SERVER_LOG,
    LIGHTHOUSE,
    LETTER,
    TEMPERATURE_CODE,
    RULES,
)
