"""What is not read as English is matched by its very letters, in whatever language it is."""

import pytest

from phasewise.semantic_match.guards import Guard
from phasewise.semantic_match.guards.content import unread_language_differs
from phasewise.semantic_match.guards.reading import read
from phasewise.semantic_match.matching import DOUBTS

NEAR_MISSES = {
    "German": [
        ("Konto eröffnen?", "Konto schließen?"),
        ("Kann man bar zahlen?", "Kann man nicht bar zahlen?"),
        ("Welche Lebensmittel sollte man essen?", "Welche Lebensmittel sollte man nicht essen?"),
        ("Was zieht man im Sommer an?", "Was zieht man im Winter an?"),
        ("Will Anna also in Rom wohnen?", "Will Anna also in Rom arbeiten?"),
        ("Wo finde ich my Account?", "Wo finde ich my Password?"),
    ],
    "French": [
        ("Ouvrir un compte bancaire", "Fermer un compte bancaire"),
        ("Puis-je annuler ma commande ?", "Puis-je modifier ma commande ?"),
        ("Peut-on payer en ligne ?", "Peut-on payer en magasin ?"),
    ],
    "Spanish": [
        ("Abrir cuenta bancaria", "Cerrar cuenta bancaria"),
        ("Puedo cancelar mi pedido?", "Puedo cambiar mi pedido?"),
        ("He pagado, no me ha llegado nada", "No he pagado, me ha llegado nada"),
    ],
    "Italian": [
        ("Posso cancellare ordine", "Posso modificare ordine"),
        ("Come apro un conto?", "Come chiudo un conto?"),
    ],
    "Portuguese": [
        ("Como abro a conta do banco?", "Como fecho a conta do banco?"),
        ("Do Porto a Lisboa, quanto custa?", "Do Porto a Lisboa, quanto demora?"),
    ],
    "Dutch": [
        ("Is Anna in Utrecht?", "Is Anna niet in Utrecht?"),
        ("Kan ik mijn order annuleren?", "Kan ik mijn order wijzigen?"),
        ("Was de winkel open of dicht?", "Was de winkel open?"),
    ],
    "Danish": [("Regn i Oslo?", "Sne i Oslo?"), ("Hvor kan man bo her?", "Hvor kan man spise her?")],
    "no language": [("👍", "👎"), ("x", "y")],
    "Turkish": [
        ("Şifremi nasıl sıfırlarım?", "Şifremi nasıl sıfırlamam?"),
        ("Her gun on saat acik mi?", "Her gun on saat kapali mi?"),
    ],
    "Polish": [
        ("Jak otworzyć konto?", "Jak zamknąć konto?"),
        ("Do kina czy do teatru?", "Do kina i do teatru?"),
        ("Czy to on my order anulowal?", "Czy to on my order zmienil?"),
    ],
    "Romanian": [("Are Anna un cont?", "Are Anna o masina?"), ("Cum deschid contul?", "Cum inchid contul?")],
    "Finnish": [("Miten avaan tilin?", "Miten suljen tilin?"), ("He on Oulussa", "Me on Oulussa")],
    "Hungarian": [("Hogyan nyitok számlát?", "Hogyan zárok számlát?")],
    "Indonesian": [("Bagaimana cara membuka akun saya?", "Bagaimana cara menutup akun saya?")],
    "Vietnamese": [
        ("Làm thế nào để mở tài khoản?", "Làm thế nào để đóng tài khoản?"),
        ("Lam the nao de mo tai khoan?", "Lam the nao de dong tai khoan?"),
    ],
    "Chinese": [("如何开立账户?", "如何关闭账户?"), ("wǒ zěnme kāihù", "wǒ zěnme xiāohù")],
    "Japanese": [("パスワードを変更できますか", "パスワードを変更できませんか")],
    "Hindi": [
        ("खाता कैसे खोलें?", "खाता कैसे खोलूं?"),
        ("Mera password kaise reset karun?", "Mera account kaise reset karun?"),
        ("Order cancel kaise kare", "Order track kaise kare"),
    ],
    "Arabic": [("كيف أفتح حسابا؟", "كيف أغلق حسابا؟"), ("kayfa aftah hisab", "kayfa oghliq hisab")],
    "mixed with English": [
        ("What is mera balance?", "What is mera limit?"),
        ("How much po ito?", "How much po ang refund?"),
        ("Where na ang order ko?", "Where na ang refund ko?"),
        ("Ist er in the Cloud?", "Ist er nicht in the Cloud?"),
    ],
    "Russian": [("Как открыть счёт?", "Как закрыть счёт?"), ("Kak otkryt schet?", "Kak zakryt schet?")],
}
ENGLISH = [
    ("How do I reset my password?", "How can I reset my password?"),
    ("What is Kubernetes?", "What's Kubernetes?"),
    ("Is Ann a nurse?", "Is Ann a famous nurse?"),
    ("Is it late?", "Is it too late?"),
    ("Can I cancel?", "can i cancel it"),
    ("Do I pay?", "Do I pay rent?"),
    ("Does Postgres support JSON?", "Does Postgres really support JSON?"),
    ("Who wrote Hamlet?", "Who was Hamlet written by?"),
    ("Don't cats swim?", "Do cats not swim?"),
    ("Explain recursion", "Please explain recursion"),
    ("What is a résumé?", "What does a résumé look like?"),
    ("Where is São Paulo?", "Where does São Paulo lie?"),
    ("Why is the sky blue?", "why sky blue"),
    ("Is Patrick related to Samantha?", "Is Patrick a relative of Samantha?"),
    ("Will braces be accepted by my insurance?", "hey, will braces be paid by my insurance"),
    ("Where is Los Angeles?", "Where does Los Angeles lie?"),
    ("Who was Leonardo da Vinci?", "Who is Leonardo da Vinci?"),
    ("My printer won't start", "My printer will not start up"),
    ("Why do cats die?", "Why do most cats die?"),
    ("When was Müller born?", "Müller was born when?"),
]


@pytest.mark.parametrize(
    ("one", "other"), [pair for pairs in NEAR_MISSES.values() for pair in pairs], ids=ascii
)
def test_other_words_in_a_language_that_is_not_read_are_no_match(one, other):
    assert unread_language_differs(read(one), read(other)) is not None
    assert unread_language_differs(read(other), read(one)) is not None
    assert unread_language_differs(read(one), read(f" {one.lower()} !")) is None


@pytest.mark.parametrize(("one", "other"), ENGLISH)
def test_english_is_read_though_a_question_is_short(one, other):
    assert unread_language_differs(read(one), read(other)) is None


def test_one_question_that_is_not_read_is_enough():
    assert unread_language_differs(read("How do I open it?"), read("Wie öffne ich es?")) is not None


def test_it_forbids_and_does_not_merely_doubt():
    assert Guard.LANGUAGE not in DOUBTS
