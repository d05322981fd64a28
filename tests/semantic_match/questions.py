"""One question in each language, and what changes it."""

from typing import NamedTuple


class Booking(NamedTuple):
    """A question about three rooms in Lisbon, words of it with what could stand there, and a rewording."""

    question: str
    number: tuple[str, str]
    name: tuple[str, str]
    negation: tuple[str, str]
    reworded: str


BOOKINGS = {
    "en": Booking(
        "How can I book three rooms in Lisbon with my card?",
        *(("three", "four"), ("Lisbon", "Porto"), ("with", "without")),
        reworded="Hello, what do I do to reserve three rooms in lisbon with my card",
    ),
    "de": Booking(
        "Wie kann ich in Lissabon drei Zimmer mit meiner Karte buchen?",
        *(("drei", "vier"), ("Lissabon", "Madrid"), ("mit", "ohne")),
        reworded="Hallo, wie bucht man drei Zimmer in Lissabon mit meiner Karte",
    ),
    "es": Booking(
        "¿Cómo puedo reservar tres habitaciones en Lisboa con mi tarjeta?",
        *(("tres", "cuatro"), ("Lisboa", "Oporto"), ("con", "sin")),
        reworded="Hola. ¿Me dice cómo se reservan tres habitaciones en lisboa con mi tarjeta?",
    ),
    "fr": Booking(
        "Comment puis-je réserver trois chambres à Lisbonne avec ma carte ?",
        *(("trois", "quatre"), ("Lisbonne", "Porto"), ("avec", "sans")),
        reworded="Bonjour. Que faire pour retenir trois chambres à Lisbonne avec ma carte ? Merci.",
    ),
    "it": Booking(
        "Come posso prenotare tre camere a Lisbona con la mia carta?",
        *(("tre", "quattro"), ("Lisbona", "Porto"), ("con", "senza")),
        reworded="Buongiorno. Come si prenotano tre camere a Lisbona con la mia carta?",
    ),
    "pt": Booking(
        "Como posso reservar três quartos em Lisboa com o meu cartão?",
        *(("três", "quatro"), ("Lisboa", "Évora"), ("com", "sem")),
        reworded="Olá. O que faço para reservar três quartos em Lisboa com o meu cartão?",
    ),
}
