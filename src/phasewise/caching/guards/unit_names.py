"""The names of units and currencies, and which of them say so only behind a number: 5 m, 3 in."""

from __future__ import annotations

from phasewise.caching.vocabulary import families

_NAMES = """
km kms kilometer kilometers kilometre kilometres|mi mile miles|meter meters metre metres
cm centimeter centimeters centimetre centimetres|mm millimeter millimeters millimetre millimetres
inch inches|ft feet|yd yards|lightyear lightyears|acre acres|hectare hectares|knot knots|mph|kmh kph
kg kgs kilo kilos kilogram kilograms|gram grams|mg milligram milligrams|lb lbs|oz ounce ounces|ton tons
tonne tonnes|liter liters litre litres|ml milliliter milliliters millilitre millilitres|gallon gallons gal
pint pints|quart quarts|cup cups|tbsp tablespoon tablespoons|tsp teaspoon teaspoons
celsius centigrade|fahrenheit|kelvin|joule joules|calorie calories|kcal|kwh|watt watts|kw kilowatt kilowatts
volt volts|amp amps ampere amperes|hz hertz|mhz|ghz|psi|bar|pascal pascals|degree degrees|radian radians
bit bits|byte bytes|kb kilobyte kilobytes|mb megabyte megabytes|gb gigabyte gigabytes gig gigs
tb terabyte terabytes|kib|mib|gib|mbps|gbps|ms millisecond milliseconds|sec secs seconds|min mins minutes
hr hrs hours hour|day days|week weeks|fortnight|month months|year years yr yrs|decade decades
century centuries|quarter quarters|percent|percentage percentages|am|pm
dollar dollars usd bucks|euro euros eur|sterling gbp quid|yen jpy|rupee rupees inr|yuan renminbi rmb cny
franc francs chf|krona kronor sek|peso pesos mxn|real reais brl|won krw|ruble rubles rub|lira liras try
cent cents|penny pence|bitcoin bitcoins btc|ether eth ethereum|token tokens
"""
ONLY_AFTER_A_NUMBER = {
    "m": "meter", "g": "gram", "l": "liter", "s": "sec", "h": "hr", "k": "kelvin", "c": "celsius",
    "f": "fahrenheit", "in": "inch", "foot": "ft", "pound": "pound", "pounds": "pound", "yard": "yd",
    "second": "sec", "minute": "min", "am": "am", "pm": "pm", "bar": "bar", "try": "lira", "real": "real",
    "won": "won", "rub": "ruble", "d": "day", "w": "watt", "v": "volt", "t": "ton", "b": "byte", "x": "x",
}  # fmt: skip
"""Words that mean something else elsewhere."""

UNITS = {name: usual for name, usual in families(_NAMES).items() if name not in ONLY_AFTER_A_NUMBER}
"""Every name of a unit, with the one that stands for all of them."""


def is_unit(lower: str) -> bool:
    """Whether a word that stands behind a number is a unit."""
    return lower in UNITS or lower in ONLY_AFTER_A_NUMBER
