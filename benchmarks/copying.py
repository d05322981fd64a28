"""Texts to be repeated word for word: traffic in which the answer stands in the prompt."""

from __future__ import annotations

from phasewise.benchmark.workload.drafts import Written

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

READING_ROOM = """\
1. The reading room is open from nine in the morning until eight in the evening.
2. Coats and bags are left in the lockers at the entrance.
3. Books from the open shelves may be read at any table.
4. Maps and drawings are laid out on the tables near the desk.
5. Food and drink are not allowed in the reading room.
6. Please speak quietly, and make telephone calls in the hall.
7. Photographs may be taken without a flash and without a stand.
8. Copies are made by the staff and cost ten pence a page.
9. Every reader may borrow six books at a time for four weeks.
10. Late returns cost twenty pence a day.
11. Anything lost is paid for at the price of a new copy.
12. The staff at the desk will help you to find what you need."""

MUSEUM = """\
The museum of clocks stands at the end of a quiet street behind the town hall. It was opened by a \
watchmaker who had collected clocks for forty years and had no room left in his shop. The oldest clock in \
the house was made for a monastery, and it has only one hand. On the first floor there are clocks that \
were carried on ships, each in a box of dark wood, so that the captain could tell how far he had sailed. \
On the second floor there are clocks from railway stations, and a machine that sent the time to all of \
them by wire. The smallest clock fits into a ring, and the largest fills a whole room and must be wound by \
two people. At noon all the clocks strike together, and visitors who stand on the stairs say that they can \
feel it in their feet."""

ACCOUNT_CODE = """\
class Account:
    def __init__(self, owner):
        self.owner = owner
        self.balance = 0
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance = self.balance + amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("there is not enough money")
        self.balance = self.balance - amount
        self.history.append(("withdraw", amount))

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)

    def statement(self):
        for kind, amount in self.history:
            print(kind, amount)
        print("balance", self.balance)"""

WEATHER_STATION = """\
{
  "name": "weather station",
  "place": "north roof",
  "height": 12,
  "active": true,
  "owner": "city school",
  "interval": 60,
  "unit": "metric",
  "first_sensor": "temperature",
  "second_sensor": "humidity",
  "third_sensor": "pressure",
  "highest_wind": 20,
  "highest_rain": 30,
  "contact": "weather desk",
  "language": "English",
  "battery": "full",
  "repaired": false
}"""

TABLE_LEGS = """\
1. Open the box and take out the four legs and the round top.
2. Lay the top on a blanket with the smooth side down.
3. Put one screw into each of the four holes near the edge.
4. Screw each leg in by hand until it touches the wood.
5. Tighten the screws with the small key from the bag.
6. Lift the table with the help of a second person.
7. Put the felt pads under the legs to protect the floor.
8. Wipe the top with a soft cloth and a little oil.
9. Wait for one hour before you put anything on the table.
10. Check the screws again after the first week.
11. Keep the small key in the drawer for later.
12. Call the shop if a leg or a screw is missing."""

INVITATION = """\
Dear friends, we would like to invite you to the summer party of our street on Saturday the ninth of July. \
It begins at three in the afternoon with coffee and cake in the garden of number twelve. At four, games \
will be played, and at five, a football match between the two ends of the street will begin. Please bring \
a chair, a plate and something to drink. We will light the grill at six, and there will be bread, sausages \
and vegetables for everybody. After dinner the band of the music school will play until ten. If it rains \
we will meet in the hall beside the church instead. Please tell us before the end of June how many of you \
will come, so that we can buy enough bread. You can write to us or ring the bell at number twelve. We hope \
to see all of you there. With kind regards, Martha and Henry Wells."""

PASSAGES = (
    FERRY,
    QUEUE_CODE,
    CONFIGURATION,
    READING_ROOM,
    MUSEUM,
    ACCOUNT_CODE,
    WEATHER_STATION,
    TABLE_LEGS,
    INVITATION,
)

COPYING = Written(
    "a passage to be repeated word for word",
    tuple(
        f"Repeat this text exactly, word for word, and write nothing else:\n\n{passage}"
        for passage in PASSAGES
    ),
    output_tokens=80,
)
"""The answer stands in the prompt: the best case for guessing tokens from it.

The demo model, greedily, writes the first 80 tokens of every passage back as they are.
"""
